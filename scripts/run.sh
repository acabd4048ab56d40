#!/usr/bin/env bash
# From a fresh clone to generated text: installs what is missing, builds, and trains a small GPT on the text of this
# very tree (no download).
#   scripts/run.sh [-np RANKS] [dmuon_train options, such as --set training.steps=200 or --config FILE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=1
if [[ "${1:-}" == -np ]]; then
  ranks=${2:?-np needs a number of ranks}
  shift 2
fi
scripts/setup.sh
scripts/build.sh release dmuon_train

# The tree's own text, tracked files only where this is a git checkout. Generated and licence text teaches nothing.
corpus=build/release/quickstart.txt
patterns=('*.md' '*.h' '*.cpp' '*.cmake' '*.txt' '*.sh')
list_files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z -- "${patterns[@]}"
  else
    local names=()
    for pattern in "${patterns[@]}"; do names+=(-o -name "$pattern"); done
    find . \( -path ./build -o -path ./runs -o -path ./.git \) -prune -o -type f \( "${names[@]:1}" \) -print0 | sort -z
  fi
}
list_files | xargs -0 cat >"$corpus.new"
mv "$corpus.new" "$corpus"
echo "run: training text $corpus, $(wc -c <"$corpus") bytes"

train=(build/release/dmuon_train)
case " $* " in
  *" --config "* | *" --config="*) ;;
  *) train+=(--config configs/quickstart.json --set "data.train=$corpus") ;;
esac
if ((ranks > 1)); then
  launch=(mpirun --oversubscribe --bind-to none -np "$ranks")
  ((EUID == 0)) && launch+=(--allow-run-as-root)
  exec "${launch[@]}" "${train[@]}" "$@"
fi
exec "${train[@]}" "$@"
