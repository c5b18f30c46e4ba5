#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The main demo, on this machine, over real RoCEv2 packets and without an RDMA NIC: router, client
# and peer of freeflow_gdr, then a 1 GiB rdma_copy_file, between 127.0.0.1 and 127.0.0.2. Checks
# every byte. Exits with 0 only if everything worked.
#
#   BIN   folder of the programs   (build/bin beside this folder)
#   MB    size of the file in MiB  (1024)
#   ROUTER_ADDRESS, PEER_ADDRESS, TCP_PORT, COPY_PORT   addresses and ports to use
#   LIMIT seconds after which a program that hangs is ended (180)
# Files go into a new folder below TMPDIR, /tmp, /var/tmp or the build folder: the first with room
# for twice the file.
set -u
here=$(cd "$(dirname "$0")" && pwd)
BIN=${BIN:-$here/../build/bin}
MB=${MB:-1024}
ROUTER_ADDRESS=${ROUTER_ADDRESS:-127.0.0.1}
PEER_ADDRESS=${PEER_ADDRESS:-127.0.0.2}
TCP_PORT=${TCP_PORT:-19875}
COPY_PORT=${COPY_PORT:-18516}
LIMIT=${LIMIT:-180}

for program in freeflow_gdr/router freeflow_gdr/client freeflow_gdr/peer \
    rdma_copy/rdma_copy_file; do
	if [ ! -x "$BIN/$program" ]; then
		echo "demo: $BIN/$program is not there: run 'make' first, or set BIN" >&2
		exit 1
	fi
done
needed=$((2 * MB + 16))
work=
for place in "${TMPDIR:-/tmp}" /var/tmp "$BIN"; do
	free_mb=$(df -Pm "$place" 2>/dev/null | awk 'NR == 2 { print $4 }')
	if [ "${free_mb:-0}" -ge "$needed" ]; then
		work=$(mktemp -d "$place/gdrcore-demo.XXXXXX") && break
	fi
done
if [ -z "$work" ]; then
	echo "demo: no place with $needed MiB free:" \
		"set TMPDIR to one, or MB to a smaller size of the file" >&2
	exit 1
fi

# Process ids of everything that was started here; nothing else is ever stopped.
started=
clean_up() {
	for pid in $started; do
		kill "$pid" 2>/dev/null
	done
	wait 2>/dev/null
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# start NAME PROGRAM ARGUMENTS...: runs it in the background, output to a file.
start() {
	name=$1
	shift
	timeout "$LIMIT" "$@" >"$work/$name.log" 2>&1 &
	last=$!
	started="$started $last"
}

give_up() {
	echo
	echo "demo: FAILED: $1" >&2
	for log in "$work"/*.log; do
		echo "--- $(basename "$log")" >&2
		cat "$log" >&2
	done
	exit 1
}

echo "== 1. Router on $ROUTER_ADDRESS, client beside it, peer on $PEER_ADDRESS"
echo "   The router owns a buffer and hands it to the client by descriptor." \
    "The client writes a file into it."
echo "   The peer reads the buffer by RDMA READ, checks it, answers by RDMA WRITE;" \
    "router and client see the answer."
echo
seq -f 'line %g of what the client wrote' 1 15000 >"$work/question" || exit 1
seq -f 'line %g of what the peer answered' 1 9000 >"$work/answer" || exit 1
start router "$BIN/freeflow_gdr/router" -d "soft:$ROUTER_ADDRESS,path=udp" -p "$TCP_PORT" \
    -s "$work/router.sock" -t 60
router=$last
start client "$BIN/freeflow_gdr/client" -s "$work/router.sock" -f "$work/question" \
    -o "$work/answer.client"
client=$last
start peer "$BIN/freeflow_gdr/peer" -d "soft:$PEER_ADDRESS,path=udp" -p "$TCP_PORT" \
    -f "$work/answer" -o "$work/question.peer" "$ROUTER_ADDRESS"
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

echo
echo "== 2. rdma_copy_file, $MB MiB from $PEER_ADDRESS to $ROUTER_ADDRESS"
echo
mkdir "$work/in" || exit 1
dd if=/dev/urandom of="$work/file" bs=1048576 count="$MB" 2>/dev/null ||
    give_up "the file could not be written"
start copy-server "$BIN/rdma_copy/rdma_copy_file" -d "soft:$ROUTER_ADDRESS,path=udp" \
    -p "$COPY_PORT" -o "$work/in" -1
server=$last
timeout "$LIMIT" "$BIN/rdma_copy/rdma_copy_file" -d "soft:$PEER_ADDRESS,path=udp" -p "$COPY_PORT" \
    "$ROUTER_ADDRESS" "$work/file" ||
	give_up "rdma_copy_file exited with $?"
wait "$server" || give_up "the receiving rdma_copy_file exited with $?"
cat "$work/copy-server.log"
cmp "$work/file" "$work/in/file" || give_up "the copy differs"
echo
echo "   checked: all $MB MiB are the same"
echo
echo "demo: passed"
