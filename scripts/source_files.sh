#!/usr/bin/env bash
# Lists the tree's C++ files, one a line: tracked ones in a git checkout, else all outside build folders.
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if git ls-files --error-unmatch CMakeLists.txt >/dev/null 2>&1; then
  git ls-files -- '*.h' '*.cpp' '*.cu'
else
  find include src models tools benchmarks tests examples -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) | sort
fi
