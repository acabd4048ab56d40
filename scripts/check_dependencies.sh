#!/usr/bin/env bash
# Checks that every layer includes only what the table of docs/architecture.md allows it.
#   scripts/check_dependencies.sh [ROOT]
# Prints each violation as file:line and exits 1 if there is one.
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
root=${1:-$(dirname "${BASH_SOURCE[0]}")/..}
cd "$root"

# layer: layers that it may use; what those may use follows.
table='
core:
backend: core
comm: core backend
autograd: core backend
nn: autograd
newton_schulz: core backend
optim: newton_schulz
plan: core
shard: comm nn optim plan
data: core
io: core nn
config: core
train: core backend comm autograd nn newton_schulz optim plan shard data io config
'
# models/ are written against nn alone; tools, benchmarks, tests and examples may use everything.
models_use=nn

mapfile -t files < <(find src include/dmuon models -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) 2>/dev/null | sort)
awk -v table="$table" -v models_use="$models_use" '
  BEGIN {
    lines = split(table, rows, "\n")
    for (i = 1; i <= lines; ++i) {
      if (split(rows[i], sides, ":") < 1 || sides[1] == "") continue
      layers[sides[1]] = 1
      count = split(sides[2], used, " ")
      for (j = 1; j <= count; ++j) allowed[sides[1], used[j]] = 1
    }
    layers["models"] = 1
    allowed["models", models_use] = 1
    for (l in layers) allowed[l, l] = 1
    for (k in layers) for (i in layers) for (j in layers)  # transitive closure
      if ((i, k) in allowed && (k, j) in allowed) allowed[i, j] = 1
  }
  FNR == 1 {
    depth = split(FILENAME, parts, "/")
    layer = parts[1] == "include" ? parts[3] : parts[1] == "src" ? parts[2] : parts[1]
    if (parts[1] == "include" && depth == 3 || parts[1] == "src" && depth == 2) layer = ""  # umbrella headers
    if (layer != "" && !(layer in layers)) { printf "%s:1: layer \"%s\" is not in the table\n", FILENAME, layer; bad = 1; layer = "" }
  }
  layer != "" && match($0, /^[ \t]*#[ \t]*include[ \t]*"[^"]+"/) {
    split($0, quoted, "\"")
    count = split(quoted[2], parts, "/")
    target = parts[1] == "dmuon" && count > 2 ? parts[2] : count > 1 ? parts[1] : ""
    if (target in layers) {
      ++seen
      if (!((layer, target) in allowed)) { printf "%s:%d: %s may not include %s (\"%s\")\n", FILENAME, FNR, layer, target, quoted[2]; bad = 1 }
    }
    if (target == "tests" || target == "support" || target == "tools" || target == "benchmarks") {
      printf "%s:%d: the library may not include %s\n", FILENAME, FNR, quoted[2]; bad = 1
    }
  }
  END {
    if (!bad) printf "dependency table: %d includes obey it\n", seen
    exit bad
  }' /dev/null "${files[@]}"
