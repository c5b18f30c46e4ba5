#!/usr/bin/env bash
# The C examples built with address and undefined-behaviour sanitizers, run against the real library.
# Prints 'skipped: REASON' where the compiler has no sanitizers.
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
BIN=$bin MB=64 timeout 120 c-examples/demo.sh
timeout 60 "$bin/perf/perf" -d loopback write lat -n 2000 -s 64
timeout 60 "$bin/perf/perf" -d loopback read bw -n 200 -s 65536
timeout 60 "$bin/perf/perf" -d loopback send bw -n 2000 -s 4096 -q 4 -b -C -l 4
timeout 60 "$bin/perf/perf" -d loopback atomic lat -n 500 -u 10 --retry_count 2 --json >/dev/null
# Of the two ends of a run, the server's exit status counts as well.
pair() {
    local server=$1 client=$2
    timeout 60 $server &
    local pid=$! tries=0
    until timeout 30 $client; do
        tries=$((tries + 1))
        [ $tries -lt 5 ] || { kill $pid 2>/dev/null; return 1; }
        sleep 0.5
    done
    wait $pid
}
pair "$bin/gpu_direct/server -a 127.0.0.1 -p 18701 -s 100000 -l 7" "$bin/gpu_direct/client -t 0 -a 127.0.0.2 -n 50 -s 100000 -p 18701 127.0.0.1"
pair "$bin/gpu_direct/server -a 127.0.0.1 -p 18702 -s 100000" "$bin/gpu_direct/client -t 1 -a 127.0.0.2 -n 50 -s 100000 -p 18702 127.0.0.1"
for type in rc uc ud; do
    pair "$bin/perf/pingpong $type -d soft:127.0.0.1 -p 18703 -n 300 -c" "$bin/perf/pingpong $type -d soft:127.0.0.2 -p 18703 -n 300 -c 127.0.0.1"
done
pair "$bin/perf/pingpong rc -d soft:127.0.0.1 -p 18703 -n 100 -e" "$bin/perf/pingpong rc -d soft:127.0.0.2 -p 18703 -n 100 -e 127.0.0.1"
pair "$bin/perf/perf -d soft:127.0.0.1 -p 18704" "$bin/perf/perf -d soft:127.0.0.2 -p 18704 write bw -s 100000 -n 200 -q 3 127.0.0.1"
pair "$bin/perf/perf -d soft:127.0.0.1 -p 18704" "$bin/perf/perf -d soft:127.0.0.2 -p 18704 send lat -c UD -n 200 -H 127.0.0.1"
pair "$bin/lab/solution -a 127.0.0.1 -p 18705 -s 30000" "$bin/lab/solution -a 127.0.0.2 -p 18705 -s 30000 -i 7 -c 127.0.0.1"
pair "$bin/rdma_copy/rdma -d soft:127.0.0.1 -p 18706" "$bin/rdma_copy/rdma -d soft:127.0.0.2 -p 18706 127.0.0.1 hello"
# Not static_mem: to prove that nothing is allocated it takes malloc's place, which is the sanitizer's.
timeout 60 "$bin/perf/devinfo" -d soft:127.0.0.1 -v
timeout 60 "$bin/perf/devinfo" --brief
timeout 60 "$bin/perf/ping" -S -d soft:127.0.0.1 -p 18707 &
answers=$!
sleep 0.5
timeout 60 "$bin/perf/ping" -d soft:127.0.0.2 -p 18707 -c 50 -f 127.0.0.1
# ping -S answers until it is told to stop, and then has nothing left.
kill -INT $(ps -o pid= --ppid $answers)
wait $answers
# A user's mistakes, and exercises that are not done: each says so and ends, and leaves nothing behind.
for wrong in "perf/perf write bw 127.0.0.1 -d soft:192.0.2.1" "perf/pingpong xx" "perf/devinfo -d nothing" "perf/ping" \
    "lab/solution -a 192.0.2.1" "lab/skeleton -a 127.0.0.1" "gpu_direct/client" "rdma_copy/rdma_copy_file -d loopback 127.0.0.1 /nonexistent"; do
    rc=0
    timeout 60 "$bin"/$wrong >"$out.log" 2>&1 || rc=$?
    [ $rc -gt 0 ] && [ $rc -lt 100 ] && ! grep -q Sanitizer "$out.log" || { echo "$wrong: exit $rc"; tail -n 20 "$out.log"; exit 1; }
done
echo "sanitizers: silent"
