#!/usr/bin/env bash
# How well votes train: small character models on tiny Shakespeare, one run per method, setting and seed, one after another.
# Finished runs are skipped, so it can be stopped and started again. scripts/sign_muon_quality.py makes tables and plots.
#   scripts/sign_muon_quality.sh [options]
#     --recipe small|nanogpt   2 layers, 96 wide, 400 steps (default), or nanoGPT's 4/4/128 recipe, 2,000 steps
#     --output FOLDER          runs/sign_quality_RECIPE; one folder ARM_SEED for each run
#     --seeds "1 2 3"          seeds of every arm chosen
#     --arms PATTERN           only arms whose whole name matches this extended regular expression
#     --steps N                other than the recipe's, schedules included
#     --binary FILE            another dmuon_train than build/release/dmuon_train
#     --list                   print the arms and stop
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

recipe=small output='' seeds='1 2 3' pattern='.*' steps='' binary=$root/build/release/dmuon_train list=
usage() { sed -n '4,11p' "${BASH_SOURCE[0]}" >&2; exit 2; }
while (($#)); do
  case $1 in
    --list) list=1; shift; continue ;;
    --recipe | --output | --seeds | --arms | --steps | --binary) (($# > 1)) || usage ;;
    *) usage ;;
  esac
  case $1 in
    --recipe) recipe=$2 ;;
    --output) output=$2 ;;
    --seeds) seeds=$2 ;;
    --arms) pattern=$2 ;;
    --steps) steps=$2 ;;
    --binary) binary=$2 ;;
  esac
  shift 2
done
output=${output:-$root/runs/sign_quality_$recipe}

names=() ranks=() settings=()
# arm NAME RANKS KEY=VALUE...
arm() {
  [[ $1 =~ ^($pattern)$ ]] || return 0
  names+=("$1") ranks+=("$2")
  shift 2
  settings+=("$(printf '%s\n' "$@")")
}
# rule KIND RULE RATE [MORE JSON]: an optimizer.KIND setting under the recipe's schedule.
rule() { echo "optimizer.$1={\"rule\": \"$2\", \"learning_rate\": $3, $schedule${4:+, $4}}"; }
matrix() { rule matrix "$@"; }

small_arms() {
  schedule='"schedule": {"type": "cosine", "warmup_steps": 20, "final_fraction": 0.1}'
  local k norm rate
  local muon='"preset": "custom", "momentum": 0.9, "nesterov": false'
  # Methods, four workers.
  arm sign_muon 4 "$(matrix sign_muon 2e-3)"
  arm signsgd_1e-3 4 "$(matrix signum 1e-3)"
  arm sign_adam 4 "$(matrix sign_adam 2e-3)"
  for rate in 4e-3 8e-3; do arm "sign_adam_$rate" 4 "$(matrix sign_adam "$rate")"; done
  arm muon 4 "$(matrix muon 0.02 "$muon")"
  arm adamw 4 "$(matrix adamw 2e-3 '"weight_decay": 0')"
  arm signsgd_2e-3 4 "$(matrix signum 2e-3)"
  # Workers, each with the same batch as above.
  arm sign_muon_m1 1 training.batch_tokens=256 "$(matrix sign_muon 2e-3)"
  arm sign_muon_m2 2 training.batch_tokens=512 "$(matrix sign_muon 2e-3)"
  # Newton-Schulz iterations under both normalisations; frobenius_k5 is sign_muon.
  for k in 1 2 3; do arm "sign_muon_frobenius_k$k" 4 "$(matrix sign_muon 2e-3 "\"iterations\": $k")"; done
  for k in 1 2 3 5; do
    arm "sign_muon_spectral_k$k" 4 "$(matrix sign_muon 2e-3 "\"iterations\": $k, \"normalization\": \"spectral\"")"
  done
  for norm in frobenius spectral; do
    arm "sign_muon_${norm}_k1_1e-3" 4 "$(matrix sign_muon 1e-3 "\"iterations\": 1, \"normalization\": \"$norm\"")"
  done
  # Learning rate; 2e-3 is sign_muon.
  for rate in 3e-4 1e-3 4e-3; do arm "sign_muon_$rate" 4 "$(matrix sign_muon "$rate")"; done
  # Single changes.
  arm sign_muon_post_polar 4 "$(matrix sign_muon 0.05 '"post_polar": true')"
  arm sign_muon_decay 4 "$(matrix sign_muon 2e-3 '"weight_decay": 0.1')"
  arm sign_muon_coupled_decay 4 "$(matrix sign_muon 2e-3 '"weight_decay": 0.1, "decay": "coupled"')"
  arm sign_muon_unit_gain 4 "$(matrix sign_muon 0.02 '"rate_shape": "unit_gain"')"
  arm sign_muon_auxiliary_signum 4 "$(matrix sign_muon 2e-3)" "$(rule auxiliary signum 2e-3)"
  arm lion 4 "$(matrix lion 1e-3)"
}

# Rates, schedules and clipping of configs/nanogpt_shakespeare_cpu_*.json; votes take Muon's schedule, and no clipping.
nanogpt_arms() {
  schedule='"schedule": {"type": "linear", "warmup_steps": 50}'
  local auxiliary rate
  auxiliary=$(rule auxiliary adamw 3e-3 '"weight_decay": 0, "beta2": 0.99')
  arm sign_muon 4 "$auxiliary" "$(matrix sign_muon 1e-3)"
  arm muon 4 "$auxiliary" "$(matrix muon 0.02)" training.gradient_clip=1
  arm signsgd_1e-3 4 "$auxiliary" "$(matrix signum 1e-3)"
  arm sign_adam 4 "$auxiliary" "$(matrix sign_adam 1e-3)"
  schedule='"schedule": {"type": "cosine", "warmup_steps": 100, "final_fraction": 0.1}'
  local adamw='"weight_decay": 0.1, "beta2": 0.99'
  arm adamw 4 "$(rule auxiliary adamw 1e-3 "$adamw")" "$(matrix adamw 1e-3 "$adamw")" training.gradient_clip=1
  schedule='"schedule": {"type": "linear", "warmup_steps": 50}'
  arm sign_muon_2e-3 4 "$auxiliary" "$(matrix sign_muon 2e-3)"
  # Other rates of the votes that orthogonalise nothing.
  for rate in 5e-4 2.5e-4; do arm "signsgd_$rate" 4 "$auxiliary" "$(matrix signum "$rate")"; done
  for rate in 5e-4 2e-3 4e-3 8e-3; do arm "sign_adam_$rate" 4 "$auxiliary" "$(matrix sign_adam "$rate")"; done
}

case $recipe in
  small) config=$root/configs/sign_muon_shakespeare.json; small_arms ;;
  nanogpt) config=$root/configs/sign_muon_nanogpt_shakespeare.json; nanogpt_arms ;;
  *) usage ;;
esac
((${#names[@]})) || { echo "sign_muon_quality.sh: no arm matches \"$pattern\"; see --list" >&2; exit 2; }
if [[ -n $list ]]; then printf '%s\n' "${names[@]}"; exit 0; fi
[[ -x $binary ]] || { echo "sign_muon_quality.sh: there is no $binary; build it with: scripts/build.sh release dmuon_train" >&2; exit 2; }
data=${DMUON_DATA_DIRECTORY:-$root/data}
[[ -e $data/tinyshakespeare.txt ]] || DMUON_DATA_DIRECTORY=$data "$root/scripts/get_data.sh" shakespeare

export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$output"
total=$((${#names[@]} * $(wc -w <<<"$seeds"))) number=0 failed=0
for seed in $seeds; do
  for ((i = 0; i < ${#names[@]}; ++i)); do
    number=$((number + 1))
    run=$output/${names[i]}_$seed
    [[ -e $run/finished ]] && continue
    rm -rf "$run"
    mapfile -t keys <<<"${settings[i]}"
    arguments=(--config "$config" --set "seed=$seed" --set "output=$run" --set "data.train=[\"$data/tinyshakespeare.txt\"]"
      --set sample.tokens=0 --set checkpoint.at_end=false)
    [[ $recipe == small ]] && arguments+=(--set evaluation.interval=50 --set evaluation.batch_size=16 --set evaluation.maximum_tokens=24576)
    [[ -n $steps ]] && arguments+=(--set "training.steps=$steps")
    for key in "${keys[@]}"; do arguments+=(--set "$key"); done
    start=$SECONDS
    if mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "${ranks[i]}" "$binary" "${arguments[@]}" >"$run.log" 2>&1; then
      touch "$run/finished"
      loss=$(sed -n 's/.*"validation_loss": *\([0-9.]*\).*/\1/p' "$run/metrics.jsonl" | tail -n 1)
      echo "$number of $total: ${names[i]}, seed $seed: validation loss $loss after $((SECONDS - start)) s"
    else
      failed=$((failed + 1))
      echo "$number of $total: ${names[i]}, seed $seed: FAILED, see $run.log"
    fi
  done
done
((failed == 0)) || { echo "sign_muon_quality.sh: $failed runs failed; start it again to repeat them" >&2; exit 1; }
