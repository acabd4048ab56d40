#!/usr/bin/env bash
# What votes save on a slow network: steps of a 10.7M-parameter character GPT (6 layers, 384 wide) on a virtual cluster, one
# row per method. Needs what scripts/virtual_cluster.sh needs (root). Finished rows are kept, so it can be started again.
#   scripts/sign_muon_network.sh [--rate 100mbit] [--delay 500us] [--steps 8] [--output FOLDER] [--methods PATTERN] [--build FOLDER]
#   scripts/sign_muon_network.sh --print [--output FOLDER]     the table again
# Four ranks: on four nodes, and for the hybrid (two replicas of two owners) on two nodes, with pure Sign-Muon beside it.
# Every step is logged; the first two are left out, medians are shown. Ranks share this machine's processors.
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cluster=$root/scripts/virtual_cluster.sh
export VIRTUAL_CLUSTER=dms VIRTUAL_CLUSTER_NETWORK=10.80.0

rate=100mbit delay=500us steps=8 output=$root/runs/sign_network pattern='.*' build=$root/build/release print=
usage() { sed -n '4,5p' "${BASH_SOURCE[0]}" >&2; exit 2; }
while (($#)); do
  case $1 in
    --print) print=1; shift; continue ;;
    --rate | --delay | --steps | --output | --methods | --build) (($# > 1)) || usage ;;
    *) usage ;;
  esac
  case $1 in
    --rate) rate=$2 ;;
    --delay) delay=$2 ;;
    --steps) steps=$2 ;;
    --output) output=$2 ;;
    --methods) pattern=$2 ;;
    --build) build=$2 ;;
  esac
  shift 2
done

# "NAME|NODES|SETTING|SETTING..."
methods=(
  'adamw|4|optimizer.matrix={"rule": "adamw"}'
  'muon_owner|4|optimizer.matrix={"rule": "muon"}|distribution.replicas=1'
  'sign_muon|4|optimizer.matrix={"rule": "sign_muon"}'
  'signsgd|4|optimizer.matrix={"rule": "signum"}'
  'sign_adam|4|optimizer.matrix={"rule": "sign_adam"}'
  'sign_muon_int8|4|optimizer.matrix={"rule": "sign_muon"}|distribution.vote_transport=int8_sum'
  'sign_muon_everything|4|optimizer.matrix={"rule": "sign_muon"}|optimizer.auxiliary={"rule": "signum"}'
  'sign_muon_two_nodes|2|optimizer.matrix={"rule": "sign_muon"}'
  'hybrid_two_nodes|2|optimizer.matrix={"rule": "sign_muon"}|distribution.replicas=2'
)

table() {
  echo "| method | nodes × ranks | overlap | step ms | waited for communication ms | MB sent by rank 0 | of them to other nodes |"
  echo "|---|---|---|---|---|---|---|"
  local entry name nodes overlap metrics
  for entry in "${methods[@]}"; do
    IFS='|' read -r name nodes _ <<<"$entry"
    for overlap in false true; do
      metrics=$output/${name}_overlap_$overlap/metrics.jsonl
      [[ -e $output/${name}_overlap_$overlap/finished ]] || continue
      # Medians of the steps after the second.
      awk -v row="| $name | $nodes × $((4 / nodes)) | $([[ $overlap == true ]] && echo on || echo off) |" '
        function value(key) { return match($0, "\"" key "\": *[-+.0-9e]+") ? substr($0, RSTART, RLENGTH) : "" }
        function number(text) { sub(/.*: */, "", text); return text + 0 }
        function median(a, n,  i, j, t) {
          for (i = 2; i <= n; ++i) for (j = i; j > 1 && a[j] < a[j - 1]; --j) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
          return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
        }
        number(value("step")) > 2 {
          ++n; step[n] = number(value("step_seconds")); wait[n] = number(value("exposed_communication_seconds"))
          sent[n] = number(value("bytes_sent")); between[n] = number(value("bytes_sent_between_nodes"))
        }
        END { printf "%s %.0f | %.0f | %.3f | %.3f |\n", row, 1e3 * median(step, n), 1e3 * median(wait, n), 1e-6 * median(sent, n), 1e-6 * median(between, n) }
      ' "$metrics"
    done
  done
}
if [[ -n $print ]]; then table; exit 0; fi

[[ -x $build/dmuon_train ]] || { echo "sign_muon_network.sh: there is no $build/dmuon_train; build it with: scripts/build.sh release" >&2; exit 2; }
data=${DMUON_DATA_DIRECTORY:-$root/data}
[[ -e $data/tinyshakespeare.txt ]] || DMUON_DATA_DIRECTORY=$data "$root/scripts/get_data.sh" shakespeare
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
mkdir -p "$output"
trap '$cluster down' EXIT
up=0
for nodes in 4 2; do
  for entry in "${methods[@]}"; do
    IFS='|' read -ra fields <<<"$entry"
    name=${fields[0]}
    [[ ${fields[1]} == "$nodes" && $name =~ ^($pattern)$ ]] || continue
    for overlap in false true; do
      run=$output/${name}_overlap_$overlap
      [[ -e $run/finished ]] && continue
      if ((up != nodes)); then
        $cluster down
        $cluster up "$nodes" "$rate" --delay "$delay"
        up=$nodes
      fi
      rm -rf "$run"
      arguments=(--config "$root/configs/bench_gpt_6x384.json" --set "output=$run" --set "data.train=[\"$data/tinyshakespeare.txt\"]"
        --set data.tokenizer=character --set model.vocabulary_size=0 --set training.batch_tokens=1024 --set "training.steps=$steps"
        --set logging.interval=1 --set evaluation.maximum_tokens=256 --set sample.tokens=0 --set checkpoint.at_end=false
        --set "distribution.overlap=$overlap")
      for field in "${fields[@]:2}"; do arguments+=(--set "$field"); done
      echo "$name, $nodes nodes, overlap $overlap"
      $cluster mpirun -np 4 -- "$build/dmuon_train" "${arguments[@]}" >"$run.log" 2>&1 || { tail -n 5 "$run.log" >&2; exit 1; }
      touch "$run/finished"
    done
  done
done
table
