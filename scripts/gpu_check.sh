#!/usr/bin/env bash
# The device check: builds the CUDA backend with nvcc, runs the tests labelled gpu on a real device, compute-sanitizer where it is
# installed, and the device benchmarks; prints one table and writes it as JSON.
#   scripts/gpu_check.sh [--build-only] [--output DIR]      DMUON_JOBS: compile jobs (default: processors)
#     --build-only   without a device: the header-only build links the library, its plug-ins, dmuon_train, dmuon_bench and a device test
# It ends within DMUON_GPU_TIME seconds (default 470): a step gets no more than what is left, and one that gets nothing has failed. Of
# these, 90 are kept for the tests and 90 for the bars, whatever the build takes.
#   scripts/gpu_check.sh --prepare      copies the header-only dependencies into build/gpu_headers, on a machine that has them
# The machine with the GPU needs nvcc, cmake and a C++ compiler, none of Debian's packages: copy the tree with build/gpu_headers
# there. No oneDNN, MPI or CBC: products of the host use the built-in kernels, and a job has one rank.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

headers=build/gpu_headers build=build/gpu output=build/gpu_check build_only=0
usage() { sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; }

prepare() {
  rm -rf "$headers"
  mkdir -p "$headers"
  for name in nlohmann CLI spdlog fmt catch2 xxhash.h xxh3.h; do
    if [[ -e /usr/include/$name ]]; then cp -r "/usr/include/$name" "$headers/"; fi
  done
  for needed in nlohmann/json.hpp CLI/CLI.hpp spdlog/spdlog.h fmt/core.h catch2/catch.hpp xxhash.h; do
    [[ -e $headers/$needed ]] || { echo "gpu_check: $needed is not in /usr/include: scripts/setup.sh installs it" >&2; exit 1; }
  done
  echo "gpu_check: header-only dependencies are in $headers"
}

while (($#)); do
  case $1 in
    --prepare) prepare; exit 0 ;;
    --build-only) build_only=1 ;;
    --output) output=${2:?--output needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "gpu_check: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
[[ -d $headers ]] || prepare
mkdir -p "$output"
begin=$SECONDS total=${DMUON_GPU_TIME:-470} reserve=0  # seconds that the next step leaves for later ones
bars_time=90 tests_time=90
rows=()
row() { rows+=("$1|$2|$3"); }  # what|outcome|seconds

finish() {
  printf '\n%-76s %-12s %s\n' check outcome seconds
  {
    echo '{"checks": ['
    local separator=""
    for entry in "${rows[@]}"; do
      IFS='|' read -r what outcome seconds <<<"$entry"
      printf '%-76s %-12s %s\n' "$what" "$outcome" "$seconds" >&2
      printf '%s  {"check": "%s", "outcome": "%s", "seconds": %s}' "$separator" "$what" "$outcome" "$seconds"
      separator=$',\n'
    done
    printf '\n], "seconds": %s}\n' $((SECONDS - begin))
  } 2>&1 >"$output/gpu_check.json" | cat
  ! printf '%s\n' "${rows[@]}" | grep -q '|failed|'
}

timed() {  # timed NAME LIMIT COMMAND...: runs it, keeps its output, adds a row
  local what=$1 limit=$2 start=$SECONDS outcome=passed left=$((begin + total - reserve - SECONDS))
  shift 2
  ((build_only || limit < left)) || limit=$left
  ((limit > 0)) || { row "$what" failed 0; echo "gpu_check: no time is left for: $what" >&2; return 1; }
  # A function cannot be given to timeout(1): it runs in a shell of its own that has everything defined here.
  if [[ $(type -t "$1") == function ]]; then set -- bash -c "$(declare -f "$1"); $(declare -p build output headers architectures generator targets); $1"; fi
  timeout "$limit" "$@" >"$output/${what//[^a-zA-Z0-9]/_}.txt" 2>&1 || outcome=failed
  row "$what" "$outcome" $((SECONDS - start))
  [[ $outcome == passed ]] || tail -n 20 "$output/${what//[^a-zA-Z0-9]/_}.txt" >&2
  [[ $outcome == passed ]]
}

generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
# Only the present device's architecture, unless told otherwise: kernels are most of the build.
architectures=${DMUON_CUDA_ARCHITECTURES:-}
if [[ -z $architectures ]]; then
  architectures="80;90"
  if ((!build_only)); then
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1) || true
    first=${found%%$'\n'*}
    if [[ $first =~ ^[0-9]+\.[0-9]+$ ]]; then
      architectures=${first/./}
    else
      row "nvidia-smi names the device" failed 0
      echo "gpu_check: nvidia-smi does not say what the device is, building for $architectures: ${first:-no output}" >&2
    fi
  fi
fi
# Tests share their objects' flags: one that runs kernels of the device proves that all of them would link.
targets=(dmuon_cuda dmuon_reference dmuon_train dmuon_bench)
if ((build_only)); then targets+=(test_device_kernels); else targets+=(gpu_tests); fi
build_all() {
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DDMUON_CUDA=ON "-DDMUON_CUDA_ARCHITECTURES=$architectures" \
    -DDMUON_ONEDNN=OFF -DDMUON_MPI=OFF -DDMUON_CBC=OFF -DDMUON_UNICODE=OFF -DDMUON_GPU_TESTS=ON "-DDMUON_HEADER_ONLY=$PWD/$headers" &&
    if cmake --build "$build" --target help | grep -Eq '(^|[ .])dmuon_nccl(:|$)'; then targets+=(dmuon_nccl); fi &&
    cmake --build "$build" --parallel "${DMUON_JOBS:-$(nproc)}" --target "${targets[@]}"
}
# Registers, stack and spills of every kernel, from what the compiler said while it built them; kept where nothing was rebuilt.
# A kernel that spills does not build at all (-warn-spills, and warnings are errors).
resources() {
  local report="$build/cuda_resources.txt" names=cat
  command -v c++filt >/dev/null && names="c++filt -p"
  awk '/Compiling entry function/ {split($0, part, "\047"); name = part[2]; architecture = part[4]}
       /bytes stack frame/ {stack = $1; stores = $5; loads = $9}
       /Used [0-9]+ registers/ {match($0, /Used [0-9]+/); print substr($0, RSTART + 5, RLENGTH - 5), stack, stores + loads, architecture, name}' \
    "$output/build.txt" | sort -rn | $names >"$report.new"
  if [[ -s $report.new ]]; then
    { echo "registers, bytes of stack, bytes spilled, architecture, kernel"; cat "$report.new"; } >"$report"
  fi
  rm -f "$report.new"
  if [[ -e $report ]]; then cp "$report" "$output/"; fi
}
reserve=$((bars_time + tests_time))
timed build "${DMUON_GPU_BUILD_LIMIT:-1800}" build_all || { finish; exit 1; }
resources
if grep -q 'dmuon: NCCL yes' "$output/build.txt"; then nccl=built; else nccl="not there"; fi
row "plug-in of NCCL" "$nccl" 0
if ((build_only)); then finish; exit; fi

# The bars of docs/gpu.md, one row each; before everything else, so that they never lack the time.
reserve=$tests_time
if timed "benchmark device-bars" "$bars_time" "$build/dmuon_bench" device-bars --config configs/bench_gpt2_124m.json --pairs 7 \
  --json "$output/device_bars.json"; then
  field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\"]*[^\",]\)\"\{0,1\},\{0,1\}$/\1/p" "$output/device_bars.json"; }
  while IFS='|' read -r bar found wanted verdict; do
    row "$bar: $(printf %.4g "$found"), wanted $wanted" "$verdict" 0
  done < <(paste -d '|' <(field bar) <(field found) <(field wanted) <(field verdict))
fi
reserve=0
timed "tests labelled gpu" 240 ctest --test-dir "$build" -L gpu --output-on-failure || true
if command -v compute-sanitizer >/dev/null; then
  timed "compute-sanitizer memcheck" 90 env DMUON_TEST_DEVICE=cuda "DMUON_CUDA_PLUGIN=$build/libdmuon_cuda.so" compute-sanitizer \
    --error-exitcode 1 "$build/tests/backend/test_device_kernels" "[device]" || true
else
  row "compute-sanitizer memcheck" "not there" 0
fi
# Whole steps: loss and tokens per second of every step are in the metrics beside the table.
cat docs/*.md src/train/*.cpp >"$output/text.txt"
train() {  # train NAME LIMIT CONFIG ARGUMENTS...
  local what=$1 limit=$2 config=$3 run="$output/${1//[^a-zA-Z0-9]/_}"
  shift 3
  rm -rf "$run"
  timed "$what" "$limit" "$build/dmuon_train" --config "$config" --set device=cuda --set "data.train=[\"$output/text.txt\"]" \
    --set logging.interval=1 --set "output=$run" "$@" || return 0
  cp "$run/metrics.jsonl" "$output/${what//[^a-zA-Z0-9]/_}.jsonl"
  rm -rf "$run"
}
gpt2=(configs/bench_gpt2_124m.json --set data.tokenizer=byte --set evaluation.maximum_tokens=8192 --set sample.tokens=0
  --set training.steps=20 --set training.batch_tokens=8192)
train "quickstart, 800 steps" 90 configs/quickstart.json
train "GPT-2 124M in float32, twenty steps" 60 "${gpt2[@]}"
train "GPT-2 124M in bfloat16, twenty steps" 60 "${gpt2[@]}" --set distribution.compute_dtype=bfloat16
# Tables to look into, as far as there is time: where a step goes, forms of the symmetric product, matrix products, Newton-Schulz.
timed "benchmark train-step" 60 "$build/dmuon_bench" train-step --device cuda --config configs/bench_gpt2_124m.json --pairs 5 \
  --set model.context_length=1024 --set model.activation=gelu_tanh --set distribution.compute_dtype=bfloat16 --set training.batch_tokens=32768 \
  --json "$output/train_step.json" || true
for table in device-update gemm newton-schulz; do
  timed "benchmark $table" 60 "$build/dmuon_bench" "$table" --device cuda --pairs 7 --json "$output/${table//-/_}.json" || true
done
finish
