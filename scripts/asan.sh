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
echo "sanitizers: silent"
