#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests without the slow ones.
#   scripts/test.sh                 the fast tests
#   scripts/test.sh --label unit    tests with this label (a regular expression)
#   scripts/test.sh --all           the slow ones too
#   Anything else is passed on to ctest: scripts/test.sh -R config --verbose
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

selection=(--label-exclude '^slow$')
arguments=()
while (($#)); do
  case "$1" in
    --all) selection=() ;;
    --label) selection=(--label-regex "${2:?--label needs a label}"); shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
scripts/setup.sh
scripts/build.sh release
exec ctest --test-dir build/release --output-on-failure --no-tests=error --parallel "$(nproc)" "${selection[@]}" "${arguments[@]}"
