#!/usr/bin/env bash
# A cluster on one machine: every node is a network namespace with its own host name, address and /dev/shm; links are
# limited in both directions, by a token bucket or, where they shall also have a delay, by build/release/virtual_switch. Needs
# root, iproute2 and Open MPI; with a delay also /dev/net/tun.
#   scripts/virtual_cluster.sh up NODES [RATE] [--delay DELAY]
#                                                  RATE: 1gbit, 100mbit; none (default): unlimited. DELAY: 500us, 2ms, one way
#   scripts/virtual_cluster.sh rate RATE [NODE]    another limit, for all nodes or one
#   scripts/virtual_cluster.sh delay DELAY         another delay, of a cluster made with one
#   scripts/virtual_cluster.sh hosts [SLOTS]       an Open MPI host file
#   scripts/virtual_cluster.sh mpirun -np RANKS [options of mpirun] -- COMMAND...
#   scripts/virtual_cluster.sh exec NODE COMMAND...
#   scripts/virtual_cluster.sh bytes               bytes that each node has sent and received
#   scripts/virtual_cluster.sh down
# mpirun puts consecutive ranks on one node. VIRTUAL_CLUSTER (default "dmn", at most 8 letters) names the cluster and
# VIRTUAL_CLUSTER_NETWORK (default 10.77.0) its addresses, so that several can exist at once; VIRTUAL_SWITCH is another
# virtual_switch than that of the release build.
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac

name=${VIRTUAL_CLUSTER:-dmn}
network=${VIRTUAL_CLUSTER_NETWORK:-10.77.0}
bridge=${name}br
folder=${TMPDIR:-/tmp}/virtual_cluster_$name
agent=$folder/agent.sh
switch=${VIRTUAL_SWITCH:-$(dirname "${BASH_SOURCE[0]}")/../build/release/virtual_switch}

fail() {
  echo "virtual_cluster.sh: $1" >&2
  exit 2
}

usage() {
  sed -n '5,15p' "${BASH_SOURCE[0]}" >&2
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

# number VALUE FACTOR_OF_UNIT...: "100mbit" with k=1000 m=1000000 is 100000000; nothing if VALUE has another form.
number() {
  local value=$1 pair
  for pair in "${@:2}"; do
    [[ $value =~ ^([0-9]+(\.[0-9]+)?)${pair%=*}$ ]] || continue
    awk -v value="${BASH_REMATCH[1]}" -v factor="${pair#*=}" 'BEGIN {printf "%.0f", value * factor}'
    return
  done
}

bits() {
  local value
  [[ $1 == none ]] && value=0 || value=$(number "$1" kbit=1000 mbit=1000000 gbit=1000000000)
  [[ -n $value ]] || fail "the rate \"$1\" is none of 1gbit, 100mbit, 500kbit, none"
  echo "$value"
}

nanoseconds() {
  local value
  value=$(number "$1" us=1000 ms=1000000 s=1000000000)
  [[ -n $value ]] || fail "the delay \"$1\" is none of 500us, 2ms, 0.1s"
  echo "$value"
}

switched() { [[ -p $folder/switch ]]; }

# The number of the switch's process, if it runs: numbers are used again, and an ended process may not be collected yet.
switch_process() {
  local pid
  [[ -s $folder/switch.pid ]] || return 0
  pid=$(<"$folder/switch.pid")
  [[ $(cat "/proc/$pid/comm" 2>/dev/null) == virtual_switch && $(awk '{print $3}' "/proc/$pid/stat" 2>/dev/null) != Z ]] || return 0
  echo "$pid"
}

# tell COMMAND: without a reader the FIFO would block for ever.
tell() {
  [[ -n $(switch_process) ]] || fail "the switch of the cluster \"$name\" has ended, so its nodes are not connected; make it anew: $0 down, then $0 up"
  echo "$1" >"$folder/switch"
}

# limit NODE RATE: what the node sends, and what the bridge sends to it.
limit() {
  local node=$1 rate=$2 port=${name}p${1#"$name"} value
  if switched; then
    value=$(bits "$rate")
    tell "rate ${1#"$name"} $value"
    return
  fi
  ip netns exec "$node" tc qdisc del dev eth0 root 2>/dev/null || true
  tc qdisc del dev "$port" root 2>/dev/null || true
  [[ $rate == none ]] && return
  # The bucket must hold one segment of 64 KiB that the network stack sends at once, and a timer tick of the rate.
  ip netns exec "$node" tc qdisc add dev eth0 root tbf rate "$rate" burst 128kb latency 50ms ||
    fail "tc refused the rate \"$rate\"; the kernel must have the tbf queue"
  tc qdisc add dev "$port" root tbf rate "$rate" burst 128kb latency 50ms
}

# The network cards of the nodes, as devices PREFIX0, PREFIX1, ... of this namespace.
make_bridge() {
  local count=$1 i
  ip link add "$bridge" type bridge || fail "cannot make a bridge; the kernel or container must allow network namespaces (CAP_NET_ADMIN)"
  ip addr add "$network.254/24" dev "$bridge"
  ip link set "$bridge" up
  for ((i = 0; i < count; ++i)); do
    ip link add "${name}p$i" type veth peer name "${name}t$i"
    ip link set "${name}p$i" master "$bridge" up
  done
}

make_switch() {
  local count=$1 rate=$2 delay=$3
  [[ -x $switch ]] || fail "a delay needs $switch; build it with: scripts/build.sh release virtual_switch"
  [[ -e /dev/net/tun ]] || fail "a delay needs /dev/net/tun; load the module (modprobe tun) or make it: mkdir -p /dev/net && mknod /dev/net/tun c 10 200"
  "$switch" --prefix "${name}t" --ports "$count" --control "$folder/switch" --pid-file "$folder/switch.pid" --rate "$rate" --delay "$delay" ||
    fail "the switch did not start"
}

up() {
  local count='' rate=none delay='' i node bits nanoseconds
  count=$1
  shift
  if (($#)) && [[ $1 != --* ]]; then rate=$1 && shift; fi
  while (($#)); do
    [[ $1 == --delay && $# -gt 1 ]] || usage
    delay=$2
    shift 2
  done
  [[ $count =~ ^[1-9][0-9]?$ ]] || fail "up needs a number of nodes from 1 to 99, not \"$count\""
  bits=$(bits "$rate")
  [[ -n $delay ]] && nanoseconds=$(nanoseconds "$delay")
  [[ -z $(nodes) ]] || fail "the cluster \"$name\" exists; take it down first: $0 down"
  trap 'down' EXIT  # half a cluster is taken down again
  down              # what a killed one left
  mkdir -p "$folder"
  if [[ -n $delay ]]; then make_switch "$count" "$bits" "$nanoseconds"; else make_bridge "$count"; fi
  for ((i = 0; i < count; ++i)); do
    node=$name$i
    ip netns add "$node"
    ip link set "${name}t$i" netns "$node" name eth0
    ip -n "$node" addr add "$network.$((i + 1))/24" dev eth0
    ip -n "$node" link set eth0 up txqueuelen 10000
    ip -n "$node" link set lo up
    # cubic reaches the rate where the system's default may not (bbr over veth); kernels without it keep their own.
    ip -n "$node" route change "$network.0/24" dev eth0 proto kernel scope link src "$network.$((i + 1))" congctl cubic 2>/dev/null || true
    [[ -n $delay ]] || limit "$node" "$rate"
  done
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
  echo "$count nodes: $(nodes | tr '\n' ' ')at $network.1 and up, rate $rate${delay:+, one-way delay $delay}"
}

down() {
  local node pid
  pid=$(switch_process)
  if [[ -n $pid ]]; then kill "$pid"; fi
  for node in $(nodes); do
    # What still runs there has lost its network and would poll for ever.
    ip netns pids "$node" | xargs --no-run-if-empty kill -9 2>/dev/null || true
    ip netns del "$node"
  done
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
    bits "$1" >/dev/null
    for node in $([[ -n ${2:-} ]] && echo "$name$2" || nodes); do limit "$node" "$1"; done
    ;;
  delay)
    (($#)) || usage
    need_cluster
    switched || fail "the cluster \"$name\" has no switch; make it anew with: $0 up $(nodes | wc -l) RATE --delay $1"
    value=$(nanoseconds "$1")
    tell "delay $value"
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
