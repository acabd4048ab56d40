#!/usr/bin/env bash
# Configures and builds; the other scripts call it.  scripts/build.sh PRESET [TARGET...]
#   DMUON_JOBS: compile jobs (default: processors, at most one per 1.5 GB of memory)
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift
memory_jobs=$(awk '/MemAvailable/ {print int($2 / 1500000) + 1}' /proc/meminfo)
processors=$(nproc)
jobs=${DMUON_JOBS:-$((memory_jobs < processors ? memory_jobs : processors))}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
grep -- '-- dmuon:' "$log" || true
targets=()
(($#)) && targets=(--target "$@")
cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}"
