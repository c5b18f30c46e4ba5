#!/usr/bin/env bash
# Usage: busy.sh [LOOPS...]: programs of verbs on the drop-in beside so many busy loops (4, 8, 16),
# on a machine that does nothing else. Prints a table: medians of three rounds in alternation of a
# file copy by SENDs of 1 KiB beside rsync's of the same file, READs from a process that sleeps,
# and the packets that go twice because a receiver is late. Takes ten minutes.
set -eu
cd "$(dirname "$0")/.."
for tool in cc ib_read_bw rsync; do
    command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 0; }
done
make --no-print-directory dropin >&2
run=$PWD/build/bin/gdrcore-run
out=$(mktemp -d /dev/shm/gdrcore-busy.XXXXXX)
loops=()
trap 'kill "${loops[@]}" 2>/dev/null; rm -rf "$out"' EXIT
cc -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Itests/c -o "$out/busy" bench/compare/busy.c \
    -libverbs
dd if=/dev/urandom of="$out/in" bs=1M count=256 status=none

# $1: the path. The seconds of a copy.
copied() {
    timeout 300 "$run" --address 127.106.0.1 --path "$1" "$out/busy" copy "$out/in" "$out/out"
    cmp "$out/in" "$out/out" >&2
    rm "$out/out"
}
# The same grants over a socket pair.
copied_plainly() {
    timeout 300 "$out/busy" plain "$out/in" "$out/out"
    cmp "$out/in" "$out/out" >&2
    rm "$out/out"
}
rsynced() {
    local began=${EPOCHREALTIME/[.,]/}
    rsync --whole-file "$out/in" "$out/out"
    echo "scale=2; (${EPOCHREALTIME/[.,]/} - $began) / 1000000" | bc
    rm "$out/out"
}
# $1: the path. MiB/s.
read_from_a_sleeper() {
    local server
    timeout 300 "$run" --address 127.106.0.2 --path "$1" ib_read_bw -s 1000000 -t 1 -n 300 \
        >/dev/null 2>&1 &
    server=$!
    until ss -tln | grep -q ':18515 '; do sleep 0.1; done
    timeout 300 "$run" --address 127.106.0.1 --path "$1" ib_read_bw -s 1000000 -t 1 -n 300 \
        127.0.0.1 | awk '$1 == 1000000 { print $4 }'
    wait $server
}
# The arguments of `late`. The share of packets that went twice, in percent.
twice() {
    timeout 300 "$run" --address 127.106.0.1 --path udp --stats "$out/busy" late "$@" 2>&1 |
        awk '/ sent_pkts/ && $3 > sent { sent = $3 } / retransmitted_pkts/ { twice += $3 }
             END { printf "%.1f\n", 100 * twice / (sent - twice) }'
}

rows=(
    'copy of 256 MiB by 1 KiB, memory, s|copied auto'
    'the same over UDP, s|copied udp'
    'the same grants over a socket pair, s|copied_plainly'
    'rsync --whole-file, s|rsynced'
    'READs of 1 MB, memory, MiB/s|read_from_a_sleeper auto'
    'the same over UDP, MiB/s|read_from_a_sleeper udp'
    'twice: 1 MiB, late after each, %|twice 1048576 200 1'
    'twice: 1 MiB, late after each 8, %|twice 1048576 400 8'
    'twice: 1 KiB, late after each 64, %|twice 1024 20480 64'
)
header="| beside busy loops |" line="|---|"
declare -a cells
for n in "${@:-4 8 16}"; do for n in $n; do
    header+=" $n |" line+="---:|"
    for ((i = 0; i < n; i++)); do
        (while :; do :; done) &
        loops+=($!)
    done
    for round in 1 2 3; do
        for i in "${!rows[@]}"; do
            ${rows[i]#*|} >>"$out/$i.$n"
        done
    done
    for i in "${!rows[@]}"; do
        cells[i]+=" $(sort -n "$out/$i.$n" | paste -sd' ' | sed 's/ /, /g') |"
    done
    kill "${loops[@]}"
    wait "${loops[@]}" 2>/dev/null || true
    loops=()
done; done
printf '%s\n%s\n' "$header" "$line"
for i in "${!rows[@]}"; do printf '| %s |%s\n' "${rows[i]%%|*}" "${cells[i]}"; done
