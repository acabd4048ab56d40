#!/usr/bin/env bash
# Collectives between hosts: the collective matrix on two nodes of a virtual cluster; that rate and delay are what was asked for; what the script says when it cannot. Skipped (77) where network namespaces are not available.
# Votes put the bytes of their formula on the wire, and headers of TCP and IP.
#   tests/comm/virtual_cluster.sh PROGRAM ROUND_TRIP_PROGRAM VOTE_PROGRAM
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
program=$1
round_trip=$2
vote=$3
cluster=scripts/virtual_cluster.sh
export VIRTUAL_CLUSTER=dmt VIRTUAL_CLUSTER_NETWORK=10.78.0

expect() {  # expect STATUS TEXT COMMAND...
  local status=0 output
  output=$("${@:3}" 2>&1) || status=$?
  [[ $status == "$1" && $output == *"$2"* ]] && return
  echo "\"${*:3}\" ended with $status, expected $1 and \"$2\":" >&2
  echo "$output" >&2
  exit 1
}

expect 2 'up NODES [RATE] [--delay DELAY]' $cluster
if [[ $(id -u) != 0 ]]; then
  expect 2 'run it as root' $cluster up 2
  echo "skipped: network namespaces need root"
  exit 77
fi
ip netns add dmtprobe 2>/dev/null || { echo "skipped: network namespaces are not available"; exit 77; }
ip netns del dmtprobe

trap '$cluster down' EXIT
$cluster down
expect 2 'there is no cluster "dmt"' $cluster hosts
expect 2 'from 1 to 99, not "many"' $cluster up many
expect 2 'the rate "quick" is none of' $cluster up 2 quick
expect 2 'the delay "3" is none of' $cluster up 2 1gbit --delay 3
expect 2 'up NODES [RATE]' $cluster up 2 1gbit --latency 3ms
expect 2 'scripts/build.sh release virtual_switch' env VIRTUAL_SWITCH=/nowhere $cluster up 2 --delay 3ms
expect 2 'there is no cluster "dmt"' $cluster hosts
$cluster up 2 1gbit
expect 2 'the cluster "dmt" exists' $cluster up 2
expect 2 'has no switch' $cluster delay 1ms
expect 0 '10.78.0.2 slots=3' $cluster hosts 3
expect 0 '0 failed' $cluster mpirun -np 4 -- "$program"
# The data went over the links, not around them.
read -r _ _ sent _ received < <($cluster bytes)
echo "node 0 sent $sent bytes and received $received"
((sent > 50000000 && received > 50000000)) || { echo "too few bytes between the nodes" >&2; exit 1; }
# packed_scatter: 2(M-1)·8·W bytes of all workers together; packed_gather: M(M-1)·8·W, for two workers as much. Headers and
# acknowledgements are less than a tenth, the start of a job less than 2 MB.
sent_by_all() { $cluster bytes | awk '{sum += $3} END {printf "%.0f", sum}'; }
words=1000000 votes=4
for transport in packed_scatter packed_gather; do
  before=$(sent_by_all)
  $cluster mpirun -np 2 -- "$vote" $transport $words $votes
  wire=$(($(sent_by_all) - before))
  formula=$((2 * 8 * words * votes))
  echo "$transport: $wire bytes on the wire for $formula bytes of votes"
  ((wire >= formula && wire <= formula + formula / 10 + 2000000)) || { echo "$transport: expected $formula bytes and headers" >&2; exit 1; }
done
$cluster down

# The same with a delay.
if [[ ! -e /dev/net/tun ]]; then
  expect 2 'a delay needs /dev/net/tun' $cluster up 2 --delay 3ms
  echo "no /dev/net/tun: the delay was not tested"
  exit 0
fi
# within NAME VALUE LOW HIGH
within() { (($2 >= $3 && $2 <= $4)) || { echo "$1 took $2 us, expected $3 to $4" >&2; exit 1; }; }
measure() {
  local said
  said=$($cluster mpirun -np 2 -- "$round_trip")  # to the end of the job: the next step changes its network
  read -r _ _ small _ _ large _ <<<"$said"
  echo "$1: round trip $small us, megabyte $large us"
}
$cluster up 2 100mbit --delay 5ms
measure "100 Mbit/s, 5 ms"
within "a round trip" "$small" 10000 20000
within "a megabyte" "$large" 92000 250000  # 84 ms of bytes at least
expect 2 'the rate "fast" is none of' $cluster rate fast
$cluster rate 20mbit
$cluster delay 20ms
measure "20 Mbit/s, 20 ms"
within "a round trip" "$small" 40000 60000
within "a megabyte" "$large" 450000 1000000
pid=$(<"${TMPDIR:-/tmp}/virtual_cluster_dmt/switch.pid")
$cluster down
# ended PROCESS: waits for the end of a switch.
ended() {
  local i
  for ((i = 0; i < 50; ++i)); do
    [[ $(cat "/proc/$1/comm" 2>/dev/null) == virtual_switch && $(awk '{print $3}' "/proc/$1/stat" 2>/dev/null) != Z ]] || return 0
    sleep 0.1
  done
  return 1
}
ended "$pid" || { echo "the switch (process $pid) outlived its cluster" >&2; exit 1; }

# A switch that died is said, not waited for.
$cluster up 2 100mbit --delay 1ms
pid=$(<"${TMPDIR:-/tmp}/virtual_cluster_dmt/switch.pid")
kill "$pid"
ended "$pid" || { echo "the switch (process $pid) cannot be ended" >&2; exit 1; }
expect 2 'has ended, so its nodes are not connected; make it anew' timeout 20 $cluster rate 20mbit
expect 2 'has ended, so its nodes are not connected; make it anew' timeout 20 $cluster delay 2ms
$cluster down
