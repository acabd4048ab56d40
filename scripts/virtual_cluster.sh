#!/usr/bin/env bash
# A cluster on one machine: every node is a network namespace with its own host name, address and /dev/shm; links are
# limited by a token bucket in both directions. Needs root, iproute2 and Open MPI.
#   scripts/virtual_cluster.sh up NODES [RATE]     RATE as tc writes it: 1gbit, 100mbit; none (default): unlimited
#   scripts/virtual_cluster.sh rate RATE [NODE]    another limit, for all nodes or one
#   scripts/virtual_cluster.sh hosts [SLOTS]       an Open MPI host file
#   scripts/virtual_cluster.sh mpirun -np RANKS [options of mpirun] -- COMMAND...
#   scripts/virtual_cluster.sh exec NODE COMMAND...
#   scripts/virtual_cluster.sh bytes               bytes that each node has sent and received
#   scripts/virtual_cluster.sh down
# mpirun puts consecutive ranks on one node. VIRTUAL_CLUSTER (default "dmn", at most 8 letters) names the cluster and
# VIRTUAL_CLUSTER_NETWORK (default 10.77.0) its addresses, so that several can exist at once.
set -euo pipefail

name=${VIRTUAL_CLUSTER:-dmn}
network=${VIRTUAL_CLUSTER_NETWORK:-10.77.0}
bridge=${name}br
folder=${TMPDIR:-/tmp}/virtual_cluster_$name
agent=$folder/agent.sh

fail() {
  echo "virtual_cluster.sh: $1" >&2
  exit 2
}

usage() {
  sed -n '4,12p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

need() {
  [[ $(id -u) == 0 ]] || fail "network namespaces need root; run it as root (sudo $0 ...)"
  local tool
  for tool in ip tc unshare; do
    command -v "$tool" >/dev/null || fail "$tool is missing; install iproute2 and util-linux (apt-get install iproute2 util-linux)"
  done
}

nodes() { ip netns list | awk '{print $1}' | { grep -E "^${name}[0-9]+$" || true; } | sort -V; }

need_cluster() { [[ -n $(nodes) ]] || fail "there is no cluster \"$name\"; make one with: $0 up 2 1gbit"; }

# limit NODE RATE: what the node sends, and what the bridge sends to it.
limit() {
  local node=$1 rate=$2 port=${name}p${1#"$name"}
  ip netns exec "$node" tc qdisc del dev eth0 root 2>/dev/null || true
  tc qdisc del dev "$port" root 2>/dev/null || true
  [[ $rate == none ]] && return
  # The bucket must hold one segment of 64 KiB that the network stack sends at once, and a timer tick of the rate.
  ip netns exec "$node" tc qdisc add dev eth0 root tbf rate "$rate" burst 128kb latency 50ms ||
    fail "tc refused the rate \"$rate\"; write it as 1gbit or 100mbit (and the kernel must have the tbf queue)"
  tc qdisc add dev "$port" root tbf rate "$rate" burst 128kb latency 50ms
}

up() {
  local count=$1 rate=${2:-none} i node port
  [[ $count =~ ^[1-9][0-9]?$ ]] || fail "up needs a number of nodes from 1 to 99, not \"$count\""
  [[ -z $(nodes) ]] || fail "the cluster \"$name\" exists; take it down first: $0 down"
  trap 'down' EXIT  # half a cluster is taken down again
  ip link add "$bridge" type bridge || fail "cannot make a bridge; the kernel or container must allow network namespaces (CAP_NET_ADMIN)"
  ip addr add "$network.254/24" dev "$bridge"
  ip link set "$bridge" up
  for ((i = 0; i < count; ++i)); do
    node=$name$i port=${name}p$i
    ip netns add "$node"
    ip link add "$port" type veth peer name eth0 netns "$node"
    ip link set "$port" master "$bridge" up
    ip -n "$node" addr add "$network.$((i + 1))/24" dev eth0
    ip -n "$node" link set eth0 up
    ip -n "$node" link set lo up
    # cubic reaches the rate where the system's default may not (bbr over veth); kernels without it keep their own.
    ip -n "$node" route change "$network.0/24" dev eth0 proto kernel scope link src "$network.$((i + 1))" congctl cubic 2>/dev/null || true
    limit "$node" "$rate"
  done
  mkdir -p "$folder"
  # What mpirun starts instead of ssh: "agent ADDRESS command...". A host name and a /dev/shm of its own per node, else
  # the shared-memory files of two nodes collide.
  cat >"$agent" <<AGENT
#!/usr/bin/env bash
node=$name\$((\${1##*.} - 1))
shift
exec ip netns exec "\$node" unshare --uts --mount bash -c \
  'hostname "\$0" && mount -t tmpfs none /dev/shm && exec bash -c "\$1"' "\$node" "\$*"
AGENT
  chmod +x "$agent"
  trap - EXIT
  echo "$count nodes: $(nodes | tr '\n' ' ')at $network.1 and up, rate $rate"
}

down() {
  local node
  for node in $(nodes); do ip netns del "$node"; done
  ip link del "$bridge" 2>/dev/null || true
  rm -rf "$folder"
}

hosts() {
  local node
  for node in $(nodes); do echo "$network.$((${node#"$name"} + 1)) slots=${1:-1}"; done
}

start() {
  local options=() ranks='' host_file slots status=0
  while (($#)) && [[ $1 != -- ]]; do
    [[ $1 == -np || $1 == -n ]] && ranks=${2:-}
    options+=("$1")
    shift
  done
  [[ ${1:-} == -- && $# -gt 1 && $ranks =~ ^[1-9][0-9]*$ ]] || usage
  shift
  slots=$(((ranks + $(nodes | wc -l) - 1) / $(nodes | wc -l)))
  host_file=$(mktemp)
  hosts "$slots" >"$host_file"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  # mpirun itself runs in node 0, so that every address it tells is on the cluster's network. Two sockets a pair of
  # nodes, because one halves the rate of two-way traffic; sessions stay attached, because sched_yield does nothing
  # between sessions.
  "$agent" "$network.1" "exec mpirun --hostfile $host_file --map-by slot --bind-to none --mca plm_rsh_agent $agent \
    --mca plm_rsh_no_tree_spawn 1 --mca pml ob1 --mca btl tcp,vader,self --mca btl_tcp_if_include $network.0/24 \
    --mca oob_tcp_if_include $network.0/24 --mca btl_tcp_links 2 --mca mpi_yield_when_idle 1 --leave-session-attached \
    $(printf '%q ' "${options[@]}" "$@")" || status=$?
  rm -f "$host_file"
  return $status
}

count_bytes() {
  local node
  for node in $(nodes); do
    ip netns exec "$node" awk -v node="$node" '$1 == "eth0:" {print node, "sent", $10, "received", $2}' /proc/net/dev
  done
}

command=${1:-}
shift || usage
need
case $command in
  up) (($#)) || usage; up "$@" ;;
  rate)
    (($#)) || usage
    need_cluster
    for node in $([[ -n ${2:-} ]] && echo "$name$2" || nodes); do limit "$node" "$1"; done
    ;;
  hosts) need_cluster; hosts "$@" ;;
  mpirun) need_cluster; start "$@" ;;
  exec)
    (($# > 1)) || usage
    need_cluster
    node=$name$1
    shift
    exec ip netns exec "$node" "$@"
    ;;
  bytes) need_cluster; count_bytes ;;
  down) down ;;
  *) usage ;;
esac
