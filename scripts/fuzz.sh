#!/usr/bin/env bash
# Fuzzes the readers of foreign files (tests/fuzz/targets.h) with libFuzzer under the address and undefined-behaviour sanitizers.
#   scripts/fuzz.sh [SECONDS]      in total, default 120; first every target has to find a bug planted in its own check
# Needs clang-14. Findings stay in build/fuzz; inputs worth keeping go to tests/fuzz/corpus/<target>.
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-120}
out=build/fuzz
mkdir -p "$out"
command -v clang++-14 >/dev/null || { echo "fuzz: clang++-14 is missing (scripts/setup.sh)" >&2; exit 1; }

sources=(src/core/*.cpp src/io/{input_file,safetensors_format,safetensors_reader,huggingface_config,huggingface_files}.cpp
  src/nn/huggingface_config.cpp src/data/{*tokenizer*,added_tokens,byte_symbols,document_reader,json_field,merge_table,pre_tokenizer,text_reader,utf8}.cpp
  src/data/unicode/{characters,pattern}.cpp models/{gpt2,qwen}_{settings,huggingface}.cpp models/*settings*.cpp)
mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v /plugin_file | sort -u)
flags=(-std=c++20 -O1 -g1 -w -Iinclude -Isrc -Itests -I. -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all)
compile() { # SOURCE OBJECT [FLAG...]
  local source=$1 object=$2
  shift 2
  [[ $object -nt $source ]] && return
  if command -v ccache >/dev/null; then ccache clang++-14 "${flags[@]}" "$@" -c "$source" -o "$object"
  else clang++-14 "${flags[@]}" "$@" -c "$source" -o "$object"; fi
}
rm -f "$out"/*.o
objects=()
for source in "${sources[@]}"; do
  object=$out/${source//\//_}.o
  objects+=("$object")
  compile "$source" "$object" &
  (($(jobs -rp | wc -l) < $(nproc))) || wait -n
done
compile tests/fuzz/targets.cpp "$out/targets.o" &
compile tests/fuzz/planted_bug.cpp "$out/bug.o" -DDMUON_FUZZ_PLANTED_BUG=0
compile tests/fuzz/planted_bug.cpp "$out/bug_planted.o" -DDMUON_FUZZ_PLANTED_BUG=1
wait
libraries=(-lxxhash -lspdlog -lfmt -lpcre2-8 -lutf8proc -lpthread)
targets=(safetensors shards config tokenizer documents)
for target in "${targets[@]}"; do
  compile tests/fuzz/libfuzzer_main.cpp "$out/main_$target.o" -DDMUON_FUZZ_TARGET="$target"
  for variant in "" _planted; do
    clang++-14 -fsanitize=address,undefined,fuzzer "$out/main_$target.o" "$out/targets.o" "$out/bug$variant.o" "${objects[@]}" "${libraries[@]}" \
      -o "$out/$target$variant"
  done
done

share=$((seconds / ${#targets[@]}))
for target in "${targets[@]}"; do
  mkdir -p "$out/corpus_$target" "$out/planted_$target"
  options=(-max_len=4096 -timeout=10 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=0)
  # The corpus must not show the planted bug: the search has to find it. One seed, so that every machine walks the same way.
  planted=("$out/${target}_planted" "${options[@]}" -artifact_prefix="$out/planted_$target/" "$out/planted_$target" "tests/fuzz/corpus/$target")
  rm -f "$out/planted_$target"/*
  "${planted[@]}" -runs=0 >"$out/planted_$target.log" 2>&1 || { echo "fuzz: the corpus of $target shows its planted bug" >&2; exit 1; }
  rm -f "$out/planted_$target"/*
  begin=$SECONDS
  if "${planted[@]}" -seed=1 -max_total_time=120 >"$out/planted_$target.log" 2>&1; then
    echo "fuzz: target $target did not find the bug planted in it" >&2
    exit 1
  fi
  echo "fuzz: $target finds its planted bug after $((SECONDS - begin)) s"
done
for target in "${targets[@]}"; do
  "$out/$target" "${options[@]}" -max_total_time=$((share > 1 ? share : 1)) -print_final_stats=1 -artifact_prefix="$out/$target-" \
    "$out/corpus_$target" "tests/fuzz/corpus/$target" >"$out/$target.log" 2>&1 || { tail -40 "$out/$target.log" >&2; exit 1; }
  echo "fuzz: $target, $(awk '/number_of_executed_units/ {print $2}' "$out/$target.log") inputs, nothing found"
done
