#!/usr/bin/env bash
# Measures the cost of one operation between two queue pairs of one context, by stage: instructions
# (callgrind) and nanoseconds (the fastest of 20,000 batches of 50, divided by perf's samples).
# Prints the tables of docs/records/PERFORMANCE.md.
#
# scripts/stages.sh [OPERATION ...]: those of bench/stages/loop.c (if none is named, write, send,
# read and empty).
#
# Uses the release library of the target folder, or the one that LIBGDRCORE names.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
count=2000

for tool in valgrind addr2line cc; do
    command -v $tool >/dev/null || {
        echo "skipped: $tool is not installed (scripts/deps.sh)"
        exit 0
    }
done
if [ -z "${LIBGDRCORE:-}" ]; then
    "${CARGO:-cargo}" build --release -q -p gdrcore
    LIBGDRCORE=$target/release/libgdrcore.so
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cp "$LIBGDRCORE" "$out/libgdrcore.so"
ln -s libgdrcore.so "$out/libgdrcore.so.0"
cc -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -Iinclude -o "$out/stages-loop" \
    bench/stages/loop.c \
    -L"$out" -lgdrcore -Wl,-rpath,"$out"
cc -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -o "$out/slow.so" bench/stages/slow.c -ldl

[ $# -gt 0 ] || set -- write send read empty
for operation in "$@"; do
    line=$("$out/stages-loop" "$operation" time)
    ns=$(sed 's/.*fastest \([0-9.]*\) ns.*/\1/' <<<"$line")
    LD_PRELOAD=$out/slow.so valgrind --tool=callgrind --toggle-collect=measured --dump-instr=yes \
        --compress-pos=no \
        --callgrind-out-file="$out/callgrind" "$out/stages-loop" "$operation" $count >"$out/log" \
        2>&1 ||
        { tail -5 "$out/log"; exit 1; }
    samples=()
    # Samples by the CPU clock: virtual machines rarely have hardware counters.
    if perf record -q -e cpu-clock -F 10000 -o "$out/perf" "$out/stages-loop" "$operation" \
        10000000 >/dev/null 2>&1 &&
        perf script -i "$out/perf" -F ip,sym,symoff,dso --no-demangle >"$out/samples" \
        2>/dev/null; then
        samples=("$out/samples")
    fi
    python3 bench/stages/stages.py "$operation" "$out/libgdrcore.so" $count "$out/callgrind" "$ns" \
        "${samples[@]}"
    echo
    echo "$line"
done
