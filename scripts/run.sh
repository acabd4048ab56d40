#!/usr/bin/env bash
# From a fresh clone to generated text: installs what is missing, builds, and trains a small GPT on the text of this
# very tree (no download).
#   scripts/run.sh [-np RANKS] [dmuon_train options, such as --set training.steps=200 or --config FILE]
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=1
if [[ "${1:-}" == -np ]]; then
  ranks=${2:?-np needs a number of ranks}
  shift 2
fi
scripts/setup.sh
scripts/build.sh release dmuon_train

# The text of the tree itself: tracked files where this is a git checkout, else all.
list_text() {
  local patterns=('*.md' '*.h' '*.cpp' '*.cmake' '*.txt' '*.sh')
  if git ls-files --error-unmatch CMakeLists.txt >/dev/null 2>&1; then
    git ls-files -z -- "${patterns[@]}"
  else
    local names=()
    for pattern in "${patterns[@]}"; do names+=(-o -name "$pattern"); done
    find . \( -path ./build -o -path ./runs -o -path ./.git \) -prune -o -type f \( "${names[@]:1}" \) -print0 | sort -z
  fi
}

train=(build/release/dmuon_train)
if [[ " $* " != *" --config"* ]]; then
  corpus=build/release/quickstart.txt
  # A run that goes on needs the text it began with; every other one takes today's text and a directory of its own.
  if [[ " $* " == *" --resume"* && -s $corpus ]]; then
    train+=(--config configs/quickstart.json --set "data.train=$corpus")
  else
    list_text | xargs -0 cat >"$corpus.new"
    mv "$corpus.new" "$corpus"
    output=runs/quickstart
    for ((number = 2; 1; ++number)); do
      [[ -e $output ]] || break
      output=runs/quickstart-$number
    done
    train+=(--config configs/quickstart.json --set "data.train=$corpus" --set "output=$output")
    echo "run: training on $corpus ($(wc -c <"$corpus") bytes), results in $output"
  fi
fi

if ((ranks > 1)); then
  launch=(mpirun --oversubscribe --bind-to none -np "$ranks")
  ((EUID == 0)) && launch+=(--allow-run-as-root)
  exec "${launch[@]}" "${train[@]}" "$@"
fi
exec "${train[@]}" "$@"
