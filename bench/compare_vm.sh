#!/usr/bin/env bash
# `make compare-vm`: our soft device beside Linux's rxe, over the same pair of virtual interfaces in
# one emulated machine, alternating in one run. perftest drives rxe; c-examples' perf, which
# measures the same way, drives ours. A figure counts only if the link's counters saw the messages
# pass. Writes bench/RESULTS-VM.md. ROUNDS (8) repeats everything; each figure is the best one,
# since other load on the host only slows a run down.
set -eu
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
mkdir "$share/bin" "$share/lib"
cp "${BIN:-build/bin}/perf/perf" "$share/bin/"
cc -O2 -Wall -Wextra -Werror -o "$share/bin/bare" bench/compare/bare.c -lm
cp -L "$CARGO_TARGET_DIR/release/libgdrcore.so" "$share/lib/"
ln -s libgdrcore.so "$share/lib/libgdrcore.so.0"

# Runs in the guest, on four CPUs: on two, two busy pollers would starve the kernel's half. rxe has
# port 4791 of the namespace, so ours takes another, and UDP, since both ends are on one host and
# would otherwise use shared memory.
cat >"$share/guest.sh" <<'GUEST'
export LD_LIBRARY_PATH=/share/lib
count() { # count lat|bw SIZE: messages
    # Few messages and many rounds: a short run may find a moment without other load on the host.
    case $1$2 in lat64|lat4096) echo 200;; lat65536) echo 60;; lat*) echo 15;;
        bw64|bw4096) echo 2000;; bw65536) echo 150;; *) echo 20;; esac
}
rxe() { # rxe VERB MODE SIZE N: minimum, median or average
    local options="-n $4 -s $3 -F -x 1"
    [ "$2" = bw ] && options="$options -t 64 -Q 1"
    timeout 120 "ib_$1_$2" -d rxe1 $options >/tmp/server 2>&1 & local server=$!
    sleep 0.5
    timeout 120 "ib_$1_$2" -d rxe0 $options 10.77.0.2 >/tmp/client 2>&1
    wait $server
    # lat: bytes, iterations, t_min, t_max, t_typical, ...
    # bw: bytes, iterations, peak, average (MB of 2^20)
    awk -v mode="$2" -v size="$3" \
        '$1 == size && NF >= 5 { print mode == "lat" ? $5 : $4 * 1.048576 }' /tmp/client
}
ours() { # ours VERB MODE SIZE N
    timeout 120 /share/bin/perf -d soft:10.77.0.2:4792,path=udp >/tmp/server 2>&1 & local server=$!
    sleep 0.5
    local options="-n $4 -s $3 -I 0"
    [ "$2" = bw ] && options="$options -t 64 -Q 1"
    timeout 120 /share/bin/perf -d soft:10.77.0.1:4792,path=udp "$1" "$2" $options --json \
        10.77.0.2 >/tmp/client 2>&1
    wait $server
    cat /tmp/client >&2
    tr ',{}' '\n' </tmp/client |
        awk -F: -v key="$([ "$2" = lat ] && echo median_us || echo MB_per_s)" \
        '{ gsub(/[" ]/, "", $1) } $1 == key { print $2 + 0 }' | head -1
}
bare() { # bare VERB lat SIZE N: what sockets alone take for an echo of one datagram
    timeout 60 /share/bin/bare -p 4793 echo 10.77.0.2 >/tmp/server 2>&1 & local server=$!
    sleep 0.5
    timeout 60 /share/bin/bare -p 4793 -s "$3" -n "$4" lat 10.77.0.1 10.77.0.2 >/tmp/client 2>&1
    wait $server
    cat /tmp/client >&2
    tr ',{}' '\n' </tmp/client |
        awk -F: '{ gsub(/[" ]/, "", $1) } $1 == "median_us" { print $2 + 0 }' | head -1
}
crossed() { # bytes that the link carried, both ways
    echo $(($(cat /sys/class/net/rv0/statistics/tx_bytes) +
        $(cat /sys/class/net/rv1/statistics/tx_bytes)))
}
for round in $(seq "$1"); do
    for mode in lat bw; do for verb in send write read; do for size in 64 4096 65536 1048576; do
        n=$(count $mode $size)
        contestants="ours rxe"
        case $verb$mode$size in sendlat64|sendlat4096) contestants="$contestants bare" ;; esac
        for who in $contestants; do
            # The client has no server on its first try if that was slow to start.
            for try in 1 2 3; do
                before=$(crossed)
                figure=$($who $verb $mode $size $n)
                [ -n "$figure" ] && break
            done
            [ $(($(crossed) - before)) -ge $((n * size)) ] || figure="did not cross the link"
            echo "$who $verb $mode $size $figure"
        done
    done; done; done
done
GUEST
rounds=${ROUNDS:-8}
VMLAB_QUIET=1 tests/vm/vm.sh run -n pair -c 4 -t $((rounds * 400)) -s "$share" \
  "bash guest.sh $rounds" >"$share/figures" 2>"$share/errors" ||
    { tail -n 20 "$share/errors"; exit 1; }
python3 -B bench/compare_vm.py "$share/figures" "$(git rev-parse --short=12 HEAD)" "$rounds" \
  "$(cat /proc/loadavg)" >"$share/page" ||
    { tail -n 20 "$share/errors"; exit 1; }
cp "$share/page" bench/RESULTS-VM.md
