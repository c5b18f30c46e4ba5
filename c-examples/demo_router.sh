#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# demo_router.sh [--remote]
#
# Containers without an RDMA NIC, on two hosts: a router on each, router, client and peer of
# freeflow_gdr as its tenants, unmodified perftest between them where it is installed, and a limit
# that is set while it runs. Hosts and containers are namespaces. Exits 0 only if all of it worked.
#
#   --remote in remote mode: each router has a device, and executes its tenants' verbs. There no
#            limit is set: rates are of the relay
#
#   GPU      PCI address of a GPU, in whose memory the buffer that is shared then is (none)
#   BIN      where the programs are     (build/bin beside this folder)
#   DROPIN   where libibverbs.so.1 is   (build/dropin beside this folder)
#   LIMIT    seconds after which a program that hangs is ended (180)
set -u
here=$(cd "$(dirname "$0")" && pwd)
BIN=${BIN:-$here/../build/bin}
DROPIN=${DROPIN:-$here/../build/dropin}
LIMIT=${LIMIT:-180}
GPU=${GPU:-}
remote=
case ${1:-} in
'') ;;
--remote) remote=yes ;;
*) echo "demo: unknown argument '$1': only --remote is known" >&2 && exit 2 ;;
esac
# What the router of freeflow_gdr and its client share: memory of a descriptor.
memory=shared
[ -z "$GPU" ] || memory=cuda:$GPU

for program in "$BIN/gdrcore-routerd" "$BIN/gdrcore-routerctl" "$BIN/freeflow_gdr/router" \
    "$BIN/freeflow_gdr/client" "$BIN/freeflow_gdr/peer" "$DROPIN/libibverbs.so.1"; do
	if [ ! -e "$program" ]; then
		echo "demo: $program is not there: run 'make' first, or set BIN and DROPIN" >&2
		exit 1
	fi
done
for tool in unshare nsenter setpriv ip; do
	if ! command -v "$tool" >/dev/null; then
		echo "demo: $tool is not installed (util-linux, iproute2)" >&2
		exit 1
	fi
done
# Paths of sockets are short, and each host's root must get at them.
work=$(mktemp -d "${TMPDIR:-/tmp}/gdrcore-router.XXXXXX") || exit 1

# Everything that we start, by process id; nothing else is ever stopped.
started=
clean_up() {
	# By force: unshare leaves other signals to its child, and a namespace ends with its first
	# process.
	for pid in $started; do
		kill -9 "$pid" 2>/dev/null
	done
	wait 2>/dev/null
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
. "$here/containers.sh"

give_up() {
	echo
	echo "demo: FAILED: $1" >&2
	for log in "$work"/*.log; do
		echo "--- $(basename "$log")" >&2
		cat "$log" >&2
	done
	exit 1
}

# start NAME COMMAND...: in the background, output to a file; sets `last`.
start() {
	name=$1
	shift
	"$@" >"$work/$name.log" 2>&1 &
	last=$!
	started="$started $last"
}

# says NAME TEXT: its log has the text.
says() {
	grep -q "$2" "$work/$1.log"
}

# number NAME: what the JSON on standard input says of it.
number() {
	sed -n "s/.*\"$1\":\\([0-9]*\\).*/\\1/p" | head -n 1
}

# ctl HOST COMMAND...: asks the host's router.
ctl() {
	host=$1
	shift
	"$BIN/gdrcore-routerctl" --socket "$work/$host/admin" "$@"
}

# policy HOST ADDRESS TENANT...
policy() {
	host=$1
	mkdir -p "$work/$host"
	printf '[router]\nadmin = "%s/admin"\n' "$work/$host"
	if [ -n "$remote" ]; then
		printf 'device = "soft:%s"\n' "$2"
		[ -z "$GPU" ] || printf 'gpus = ["%s"]\n' "$GPU"
	else
		printf '[host]\nid = "%s"\naddress = "%s"\nmap = "%s"\n' \
		    "$host" "$2" "$work/map.toml"
	fi
	shift 2
	for tenant in "$@"; do
		printf '[tenant.%s]\nlisten = "%s/%s/%s/tenant.gdrc"\n' \
		    "$tenant" "$work" "$host" "$tenant"
	done
}

echo "== 1. Two hosts with a router each, two containers on each"
echo
make_outer 2>"$work/unshare.log" || give_up "this kernel gives users no user namespaces"
for place in a b switch blue red green gold; do
	make_place "$place" 2>>"$work/unshare.log" || give_up "no namespaces for $place"
done
link a eth0 b eth0 && address a eth0 192.0.2.1/24 && address b eth0 192.0.2.2/24 ||
    give_up "no link between the hosts"
as_root switch ip link add br0 mtu 9000 type bridge && as_root switch ip link set br0 up ||
    give_up "no bridge between the containers"
cat >"$work/map.toml" <<MAP
[a]
address = "192.0.2.1"
tenant.blue = { vip = "10.99.0.1", blocks = [748, 100] }
tenant.red = { vip = "10.99.0.2", blocks = [848, 100] }
[b]
address = "192.0.2.2"
tenant.green = { vip = "10.99.0.3", blocks = [748, 100] }
tenant.gold = { vip = "10.99.0.4", blocks = [848, 100] }
MAP
for host in "a 192.0.2.1 blue red" "b 192.0.2.2 green gold"; do
	# shellcheck disable=SC2086
	set -- $host
	policy "$@" >"$work/$1.toml"
	start "routerd-$1" on_host "$1" "$BIN/gdrcore-routerd" --firewall off "$work/$1.toml"
	until_true says "routerd-$1" ready || give_up "no router on host $1"
	echo "   host $1, $2: gdrcore-routerd is ready"
done
# on_network NAME BYTE: gives a container a network, for its programs' TCP: 10.99.0.BYTE.
on_network() {
	link "$1" eth0 switch "$1" && address "$1" eth0 "10.99.0.$2/24" &&
	    as_root switch ip link set "$1" master br0 up || give_up "no link for $1"
}
last_byte=0
for container in "a blue" "a red" "b green" "b gold"; do
	# shellcheck disable=SC2086
	set -- $container
	last_byte=$((last_byte + 1))
	# The client, in red, needs none.
	[ "$2" = red ] || on_network "$2" "$last_byte"
	# The one thing that a container gets: its own folder, read-only, where it is looked for.
	as_root "$2" sh -ec "mount -t tmpfs none /run; mkdir /run/gdrcore
	    mount --bind -o ro $work/$1/$2 /run/gdrcore
	    [ ! -e /dev/infiniband ] || mount -t tmpfs none /dev/infiniband" ||
	    give_up "no mounts for $2"
	# What a program there sees of itself.
	(inside "$2" sh -c 'echo "$(sed -n "s/CapEff:\t//p" /proc/self/status)" \
	    "$(ls /dev/infiniband 2>/dev/null | wc -l)" "$(ls -d /proc/[0-9]* | wc -l)"') \
	    >"$work/$2.log" 2>&1 || give_up "nothing runs in $2"
	read -r capabilities devices processes <"$work/$2.log"
	if [ "$capabilities" != 0000000000000000 ] || [ "$devices" != 0 ]; then
		give_up "$2 has capabilities $capabilities and $devices files in /dev/infiniband"
	fi
	echo "   container $2 on host $1, 10.99.0.$last_byte: no capability, no /dev/infiniband," \
	    "sees $processes processes"
done

echo
echo "== 2. freeflow_gdr: router in blue, client in red, which has no network, both on host a;"
echo "      peer in green on host b"
echo
seq -f 'line %g of what the client wrote' 1 15000 >"$work/question" || exit 1
seq -f 'line %g of what the peer answered' 1 9000 >"$work/answer" || exit 1
start router inside blue timeout "$LIMIT" "$BIN/freeflow_gdr/router" -d router: -m "$memory" \
    --listen 10.99.0.1 -s "$work/router.sock" -t 60
router=$last
start client inside red timeout "$LIMIT" "$BIN/freeflow_gdr/client" -s "$work/router.sock" \
    -f "$work/question" -o "$work/answer.client"
client=$last
start peer inside green timeout "$LIMIT" "$BIN/freeflow_gdr/peer" -d router: \
    -f "$work/answer" -o "$work/question.peer" 10.99.0.1
peer=$last
wait "$peer" || give_up "the peer exited with $?"
wait "$client" || give_up "the client exited with $?"
wait "$router" || give_up "the router exited with $?"
cat "$work/router.log" "$work/client.log" "$work/peer.log"
cmp "$work/question" "$work/question.peer" ||
    give_up "the peer read other bytes than the client wrote"
cmp "$work/answer" "$work/answer.client" || give_up "the client saw other bytes than the peer wrote"
echo
echo "   checked: $(wc -c <"$work/question") bytes read and" \
    "$(wc -c <"$work/answer") bytes written by RDMA are the same at both ends"

# listens NAME PORT: somebody listens at a TCP port there.
listens() {
	(inside "$1" cat /proc/net/tcp /proc/net/tcp6 2>/dev/null) |
	    grep -qi ":$(printf %04x "$2") [0-9A-F]*:0000 0A "
}

# perftest TEST SERVER CLIENT [OPTION...]: starts both sides; sets `serving` and `last`. A packet
# counts as lost after 4 seconds (-u 20): this machine may be busy.
perftest() {
	test=$1 server=$2 client=$3
	shift 3
	start "$test-server" inside "$server" env LD_LIBRARY_PATH="$DROPIN" timeout "$LIMIT" \
	    "$test" -F -x 0 -u 20 "$@"
	serving=$last
	until_true listens "$server" 18515 || give_up "$test does not listen in $server"
	start "$test" inside "$client" env LD_LIBRARY_PATH="$DROPIN" timeout "$LIMIT" \
	    "$test" -F -x 0 -u 20 "$@" "$(address_of "$server")"
}

# figures TEST: its lines of figures.
figures() {
	grep -E '^ *[0-9]+ +[0-9]+ +[0-9.]+' "$work/$1.log"
}

# finish_perftest: waits for both sides.
finish_perftest() {
	wait "$last" || give_up "$test in $client exited with $?"
	wait "$serving" || give_up "$test in $server exited with $?"
}

on_network red 2
echo
echo "== 3. perftest, as it is installed: what one container gets from another"
echo
if ! command -v ib_send_bw >/dev/null; then
	echo "   skipped: perftest is not installed (apt-get install perftest)"
else
	printf '   %-12s  %-22s  %-22s\n' "" "red to blue, one host" "red to gold, two hosts"
	for test in ib_send_lat ib_write_lat ib_read_lat ib_atomic_lat; do
		for server in blue gold; do
			perftest "$test" "$server" red -n 500
			finish_perftest
			eval "of_$server=$(figures "$test" | awk 'END { print $5 }')"
		done
		# shellcheck disable=SC2154
		printf '   %-13s %11s us          %11s us\n' "$test" "$of_blue" "$of_gold"
	done
	for test in ib_send_bw ib_write_bw ib_read_bw; do
		for server in blue gold; do
			perftest "$test" "$server" red -n 1000
			finish_perftest
			eval "of_$server=$(figures "$test" | awk 'END { print $4 }')"
		done
		printf '   %-13s %11s MiB/s       %11s MiB/s\n' "$test" "$of_blue" "$of_gold"
	done
	echo
	echo "   Latencies are those of 2 bytes (ib_atomic_lat: 8), rates those of messages of 64 KiB."

fi
if [ -z "$remote" ] && command -v ib_send_bw >/dev/null; then
	echo
	echo "== 4. A limit for red, while its ib_send_bw to gold runs"
	echo
	perftest ib_send_bw gold red --run_infinitely -D 1
	has_figures() { [ "$(figures ib_send_bw | wc -l)" -ge "$1" ]; }
	# figure: what it says last, in bytes per second.
	figure() { figures ib_send_bw | awk 'END { printf "%d", $4 * 1048576 }'; }
	until_true has_figures 3 || give_up "ib_send_bw says nothing"
	before=$(figure)
	limit=$((before / 4))
	echo "   ib_send_bw says $((before / 1048576)) MiB/s"
	echo "   gdrcore-routerctl set red tx_rate=$limit"
	ctl a set red tx_rate="$limit" || give_up "the router does not take the limit"
	sent() { ctl a tenants | grep '"tenant":"red"' | number tx_bytes; }
	from=$(sent) began=$(date +%s%N)
	# One figure is partly of the time before.
	until_true has_figures $(($(figures ib_send_bw | wc -l) + 4)) || give_up "ib_send_bw stands still"
	after=$(figure)
	bytes=$(($(sent) - from)) ns=$(($(date +%s%N) - began))
	rate=$((bytes * 1000 / (ns / 1000000)))
	echo "   ib_send_bw says $((after / 1048576)) MiB/s; the router has counted $bytes bytes in" \
	    "$((ns / 1000000)) ms: $rate a second"
	kill "$last" "$serving" 2>/dev/null
	# A burst of 256 KiB may go at once, and 2 ms of the rate where that is more.
	most=$((limit * (ns / 1000000) / 1000 + limit / 500 + 262144))
	[ "$bytes" -le "$most" ] || give_up "more than the $most bytes that the limit allows"
	[ "$after" -le $((2 * limit)) ] || give_up "ib_send_bw gets more than the limit"
	ctl a set red tx_rate=off || give_up "the router does not take the limit away"
	echo
	echo "   checked: not more than the limit"
fi

bytes_of() {
	as_root "$1" ip -s -json link show dev eth0 | sed 's/.*"tx":{"bytes":\([0-9]*\).*/\1/'
}
own=$(($(bytes_of blue) + $(bytes_of red) + $(bytes_of green) + $(bytes_of gold)))
wire=$(($(bytes_of a) + $(bytes_of b)))
[ "$own" -lt $((wire / 10)) ] || give_up "$own bytes went by the containers' own links"
echo
echo "   By the containers' own links, which carry their TCP, went $own bytes;" \
    "by the hosts' $wire, as RoCEv2."
echo
echo "demo: passed"
