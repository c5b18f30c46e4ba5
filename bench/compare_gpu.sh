#!/usr/bin/env bash
# `make compare-gpu`: GPU memory beside host memory and beside the driver's own copies, on this
# machine's GPU. Both ends are queue pairs of one process (perf -d loopback). Writes
# bench/RESULTS-GPU.md, or the file OUT. ROUNDS (3) repeats everything, and the figures are medians;
# SCALE divides the numbers of messages. Without a GPU it prints a message and writes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
perf=${BIN:-build/bin}/perf/perf
out=${OUT:-bench/RESULTS-GPU.md}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -o "$work/pipeline" \
    bench/gpu/pipeline.c -ldl
scale=${SCALE:-1}
"$work/pipeline" $((1024 / scale)) >"$work/driver" 2>"$work/error" ||
    { echo "skipped: no GPU: $(tail -n 1 "$work/error")"; exit 0; }

count() { # count lat|bw SIZE: messages
    case $1$2 in lat*) n=1000 ;; bw64 | bw4096) n=20000 ;; bw65536) n=10000 ;; *) n=2000 ;; esac
    n=$((n / scale))
    echo $((n < 16 ? 16 : n))
}
for round in $(seq "${ROUNDS:-3}"); do
    for test in "send lat" "read lat" "write bw" "read bw"; do
        for size in 64 4096 65536 1048576; do
            for memory in host cuda; do
                # shellcheck disable=SC2086 # $test holds two words: verb and mode
                timeout 300 "$perf" -d loopback $test -s $size -n "$(count "${test#* }" $size)" \
                    -I 0 --mem $memory --json 2>"$work/error" |
                    tr ',{}' '\n' | awk -F: -v t="$test" -v s=$size -v m=$memory \
                    '{ gsub(/["\[ ]/, "", $1) }
                    $1 == "median_us" || $1 == "MB_per_s" { print t, s, m, $2 + 0 }' \
                    >>"$work/figures" ||
                    { echo "$test $size $memory: $(cat "$work/error")"; exit 1; }
            done
        done
    done
    "$work/pipeline" $((1024 / scale)) >>"$work/driver.all"
done
{
    echo "# GPU memory, measured"
    echo
    commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
    gpu=$(sed -n 's/^gpu //p' "$work/driver") version=$(sed -n 's/^driver //p' "$work/driver")
    load=$(cut -d' ' -f1 /proc/loadavg)
    fold -s -w 100 <<END | sed 's/ *$//'
Written by \`make compare-gpu\` ($(date -u +%F), commit $commit): $gpu, CUDA driver $version, \
$(nproc) CPUs, load $load at the end. Two queue pairs of one process; medians of ${ROUNDS:-3} \
rounds. "driver alone" is a chunk of 128 KiB at most out of the GPU and into it again by \
asynchronous copies, double-buffered (bench/gpu/pipeline.c).
END
    echo
    echo "| what | bytes | host memory | GPU memory | driver alone | GPU / host | GPU / driver |"
    echo "|---|---:|---:|---:|---:|---:|---:|"
    awk '
        function median(list, n, a, i, j, t) {
            n = split(list, a, " ")
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && a[j - 1] > a[j]; j--) {
                    t = a[j]; a[j] = a[j - 1]; a[j - 1] = t
                }
            return a[int((n + 1) / 2)]
        }
        FILENAME ~ /driver/ {
            if ($1 == "latency" || $1 == "bandwidth")
                alone[$1, $2] = alone[$1, $2] " " $3
            next
        }
        {
            key = $1 " " $2 SUBSEP $3
            if (!(key in seen)) { seen[key]; order[++n] = key }
            all[key, $4] = all[key, $4] " " $5
        }
        END {
            for (i = 1; i <= n; i++) {
                split(order[i], k, SUBSEP)
                lat = k[1] ~ /lat/
                h = median(all[order[i], "host"])
                c = median(all[order[i], "cuda"])
                d = median(alone[lat ? "latency" : "bandwidth", k[2]])
                printf "| %s, %s | %s | %s | %s | %s | %.2f | %.2f |\n", k[1], lat ? "us" : "MB/s",
                    k[2], h, c, d, c / h, c / d
            }
        }' "$work/driver.all" "$work/figures"
} >"$work/page"
cp "$work/page" "$out"
cat "$out"
