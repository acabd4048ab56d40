#!/usr/bin/env bash
# Collectives between hosts: the collective matrix on two nodes of a virtual cluster, and what the script says when it
# cannot. Skipped (77) where network namespaces are not available.  tests/comm/virtual_cluster.sh PROGRAM
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
program=$1
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

expect 2 'up NODES [RATE]' $cluster
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
expect 2 'tc refused the rate "quick"' $cluster up 2 quick
expect 2 'there is no cluster "dmt"' $cluster hosts
$cluster up 2 1gbit
expect 2 'the cluster "dmt" exists' $cluster up 2
expect 0 '10.78.0.2 slots=3' $cluster hosts 3
expect 0 '0 failed' $cluster mpirun -np 4 -- "$program"
# The data went over the links, not around them.
read -r _ _ sent _ received < <($cluster bytes)
echo "node 0 sent $sent bytes and received $received"
((sent > 50000000 && received > 50000000)) || { echo "too few bytes between the nodes" >&2; exit 1; }
