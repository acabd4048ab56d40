#!/usr/bin/env bash
# Checks that whatever is tested on the CPU backend is tested on the CUDA backend too, or says why not.
#   check_device_tests.sh ROOT LIST
# LIST holds lines "program source cases" (dmuon_write_device_tests of CMake). A source uses a backend if it, or a header of tests/ that it
# includes, makes one or starts a program that does. Such a source must belong to a program whose cases run on the device (all, or those
# tagged [device], of which it has one), or stand in ROOT/tests/device_tests.txt with a reason. Cases that make the backend under test
# (make_test_backend) must have the tag. Prints what is wrong and exits 1, or how many sources there are of each kind.
set -euo pipefail
cd "$1"
list=$2 table=tests/device_tests.txt
uses='make_cpu_backend|make_test_backend|cpu_test::make|DMUON_(TRAIN|GENERATE|EVALUATE)[^A-Z_]'
problems=0
problem() { echo "$1"; problems=$((problems + 1)); }

# Headers that use a backend, directly or through others, as they are included.
mapfile -t headers < <(cd tests && grep -rlE "$uses" --include='*.h' . | sed 's|^\./||')
while :; do
  pattern=$(printf '|"%s"' "${headers[@]}")
  mapfile -t more < <(cd tests && grep -rlE "include (${pattern:1})" --include='*.h' . | sed 's|^\./||')
  mapfile -t all < <(printf '%s\n' "${headers[@]}" "${more[@]}" | sort -u)
  ((${#all[@]} == ${#headers[@]})) && break
  headers=("${all[@]}")
done
pattern=$(printf '|"%s"' "${headers[@]}")

declare -A state
while read -r _ source cases; do
  [[ $source == tests/* && -f $source ]] || continue
  grep -qE "$uses|include (${pattern:1})" "$source" || continue
  if [[ $cases == all ]] || { [[ $cases == tagged ]] && grep -q '"\[device\]' "$source"; }; then
    state[$source]=$cases
  else
    : "${state[$source]:=none}"
  fi
done <"$list"

declare -A reason
while read -r source why; do
  [[ -z $source || $source == \#* ]] && continue
  reason[$source]=$why
  [[ -n $why ]] || problem "$table: $source has no reason"
  case ${state[$source]:-gone} in
    none) ;;
    gone) problem "$table: $source uses no backend, or is gone: remove the line" ;;
    *) problem "$table: $source runs on the device now: remove the line" ;;
  esac
done <"$table"

declare -A count=([all]=0 [tagged]=0 [none]=0)
for source in "${!state[@]}"; do
  count[${state[$source]}]=$((count[${state[$source]}] + 1))
  if [[ ${state[$source]} == none && -z ${reason[$source]:-} ]]; then
    problem "$source is tested on the CPU backend alone: make its backend by make_test_backend, tag the cases [device] and add
  dmuon_test_on_cuda(program) to its CMakeLists.txt, or give the reason in $table"
  fi
  # In a program whose tagged cases are repeated, every case that makes the backend under test.
  [[ ${state[$source]} == tagged ]] || continue
  while read -r line; do
    problem "$source:$line makes the backend under test without the tag [device]"
  done < <(awk '/^(TEMPLATE_)?TEST_CASE/ { name = NR ": " $0; open = $0 !~ /\[device\]/; inside = 1 }
                inside && open && /[^_a-z]make_test_backend\(/ { print name; open = 0 }
                /^}/ { inside = 0 }' "$source")
done
((problems == 0)) || exit 1
echo "sources that use a backend: ${count[all]} whole on the device, ${count[tagged]} by their cases tagged [device], ${count[none]} explained in $table"
