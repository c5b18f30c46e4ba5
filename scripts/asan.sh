#!/usr/bin/env bash
# Builds the C examples with address and undefined-behaviour sanitizers, and runs them against the
# real library. Prints 'skipped: REASON' where the compiler has no sanitizers.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
out=${ASAN_OUT:-$PWD/build/asan}
flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
if ! printf 'int main(void){return 0;}' | ${CC:-cc} $flags -x c -o /dev/null - 2>/dev/null; then
    echo "skipped: ${CC:-cc} cannot link with -fsanitize=address,undefined"
    exit 0
fi
mkdir -p "$out"
make --no-print-directory -C c-examples OUT="$out/bin" GDRCORE_LIBDIR="$target/release" \
    CFLAGS="-O1 -g $flags -fno-omit-frame-pointer" LDFLAGS="$flags" >"$out.log" 2>&1 ||
    { tail -n 20 "$out.log"; exit 1; }
bin=$out/bin
patience=${GDRC_TEST_PATIENCE:-1}
# Addresses that belong to this run, so that several runs can be made at once.
x=127.43.$(($$ / 250 % 250)).$(($$ % 250 + 1))
y=127.44.$(($$ / 250 % 250)).$(($$ % 250 + 1))
# within SECONDS COMMAND...: runs the command with a time limit.
within() {
    local limit=$(($1 * patience))
    shift
    timeout "$limit" "$@"
}
ROUTER_ADDRESS=$x PEER_ADDRESS=$y BIN=$bin MB=64 LIMIT=$((180 * patience)) within 300 \
    c-examples/demo.sh
within 60 "$bin/perf/perf" -d loopback write lat -n 2000 -s 64
within 60 "$bin/perf/perf" -d loopback read bw -n 200 -s 65536
within 60 "$bin/perf/perf" -d loopback send bw -n 2000 -s 4096 -q 4 -b -C -l 4
within 60 "$bin/perf/perf" -d loopback atomic lat -n 500 -u 10 --retry_count 2 --json >/dev/null
# listens PID: waits until a server listens at TCP port $port of $x, or has ended, without a
# connection, since the server accepts one only.
listens() {
    local end=$((SECONDS + 60 * patience)) at
    at=$(IFS=. && set -- $x && printf '%02X%02X%02X%02X:%04X' "$4" "$3" "$2" "$1" "$port")
    until grep -q "^ *[0-9]*: $at 00000000:0000 0A " /proc/net/tcp; do
        [ $SECONDS -lt $end ] && kill -0 "$1" 2>/dev/null || return 0
        sleep 0.05
    done
}
# pair SERVER CLIENT: runs both; both must succeed. They exchange at TCP port $port of the server's
# address; each pair has its own.
port=18700
pair() {
    port=$((port + 1))
    timeout $((60 * patience)) $1 -p $port &
    local pid=$!
    listens $pid
    within 60 $2 -p $port "$x" ${3:-} || { kill $pid 2>/dev/null; return 1; }
    wait $pid
}
pair "$bin/gpu_direct/server -a $x -s 100000 -l 7" \
    "$bin/gpu_direct/client -t 0 -a $y -n 50 -s 100000"
pair "$bin/gpu_direct/server -a $x -s 100000" "$bin/gpu_direct/client -t 1 -a $y -n 50 -s 100000"
pair "$bin/gpu_direct/server -T rc -a $x -s 100000 -l 7 -D 8" \
    "$bin/gpu_direct/client -T rc -t 0 -a $y -n 50 -s 100000"
for type in rc uc ud; do
    pair "$bin/perf/pingpong $type -d soft:$x -n 300 -c" \
        "$bin/perf/pingpong $type -d soft:$y -n 300 -c"
done
pair "$bin/perf/pingpong rc -d soft:$x -n 100 -e" "$bin/perf/pingpong rc -d soft:$y -n 100 -e"
pair "$bin/perf/perf -d soft:$x" "$bin/perf/perf -d soft:$y write bw -s 100000 -n 200 -q 3"
pair "$bin/perf/perf -d soft:$x" "$bin/perf/perf -d soft:$y send lat -c UD -n 200 -H"
pair "$bin/lab/solution -a $x -s 30000" "$bin/lab/solution -a $y -s 30000 -i 7 -c"
pair "$bin/rdma_copy/rdma -d soft:$x" "$bin/rdma_copy/rdma -d soft:$y" hello
# Without static_mem, which replaces malloc to prove that nothing is allocated: the sanitizer needs
# malloc itself.
within 60 "$bin/perf/devinfo" -d "soft:$x" -v
within 60 "$bin/perf/devinfo" --brief
port=$((port + 1))
timeout $((60 * patience)) "$bin/perf/ping" -S -d "soft:$x" -p $port &
answers=$!
listens $answers
within 60 "$bin/perf/ping" -d "soft:$y" -p $port -c 50 -f "$x"
# ping -S answers until it is interrupted, and must then have no memory left.
kill -INT $(ps -o pid= --ppid $answers)
wait $answers
# User errors, and exercises that are not done: each must end with a message and leak nothing.
for wrong in "perf/perf write bw 127.0.0.1 -d soft:192.0.2.1" "perf/pingpong xx" \
    "perf/devinfo -d nothing" "perf/ping" \
    "lab/solution -a 192.0.2.1" "lab/skeleton -a 127.0.0.1" "gpu_direct/client" \
    "rdma_copy/rdma_copy_file -d loopback 127.0.0.1 /nonexistent"; do
    rc=0
    within 60 "$bin"/$wrong >"$out.log" 2>&1 || rc=$?
    [ $rc -gt 0 ] && [ $rc -lt 100 ] && ! grep -q Sanitizer "$out.log" ||
        { echo "$wrong: exit $rc"; tail -n 20 "$out.log"; exit 1; }
done
echo "sanitizers: silent"
