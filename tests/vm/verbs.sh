#!/bin/bash
# Runs in the machine, in the folder with `bin` and `lib`: every C example on verbs devices, rxe0 to
# rxe1, only by another device name, and with malloc_count.so where the data path must not allocate.
# Prints "ok NAME" or "FAILED NAME: output", and at the end the numbers.
cd "$(dirname "$0")" || exit 2
passed=0 failed=0
patience=${GDRC_TEST_PATIENCE:-1}
A=verbs:rxe0 B=verbs:rxe1 to=10.77.0.2
work=$(mktemp -d)
head -c 3000001 /dev/urandom >"$work/note"
export GDRC_MALLOC_REPORT=$work/mallocs GDRC_MALLOC_FAIL=1

# both NAME SERVER CLIENT...: starts the server, waits for its port, runs the client; both must
# succeed. With TRIES in at most so many runs: UC and UD do not repeat what a busy machine loses.
both() {
    local name=$1 server=$2 try
    shift 2
    for ((try = 1; try <= ${TRIES:-1}; try++)); do
        bash -c "exec timeout $((60 * patience)) $server" >"$work/server" 2>&1 &
        local pid=$! rc
        sleep 1.5
        timeout $((60 * patience)) "$@" >"$work/client" 2>&1
        rc=$?
        wait "$pid"
        rc="$rc $?"
        [ "$rc" = "0 0" ] && break
    done
    if [ "$rc" = "0 0" ]; then
        passed=$((passed + 1))
        echo "ok $name"
    else
        failed=$((failed + 1))
        echo "FAILED $name: $rc: $(tail -n 4 "$work/server" "$work/client" | tr '\n' '|')"
    fi
}
with=(env "LD_PRELOAD=$PWD/bin/malloc_count.so")

for type in rc uc ud; do
    case $type in rc) tries=1 ;; *) tries=3 ;; esac
    TRIES=$tries both "pingpong $type" "${with[*]} bin/perf/pingpong $type -n 100 -c -d $B" \
        "${with[@]}" bin/perf/pingpong $type -n 100 -c -d $A $to
done
both "pingpong rc, sleeping" "${with[*]} bin/perf/pingpong rc -n 50 -e -d $B" "${with[@]}" \
    bin/perf/pingpong rc -n 50 -e -d $A $to
for verb in "send lat" "write bw" "read bw" "atomic lat"; do
    case $verb in atomic*) size= ;; *) size="-C -s 4096" ;; esac
    both "perf $verb" "${with[*]} bin/perf/perf -d $B" "${with[@]}" bin/perf/perf -d $A $verb \
        -n 200 $size $to
done
both "rdma" "bin/rdma_copy/rdma -d $B >$work/said; grep -q 'by a NIC' $work/said" \
    bin/rdma_copy/rdma -d $A $to "by a NIC"
mkdir "$work/in"
both "rdma_copy_file" \
    "bin/rdma_copy/rdma_copy_file -d $B -o $work/in -1; cmp $work/in/note $work/note" \
    bin/rdma_copy/rdma_copy_file -d $A $to "$work/note"
both "gpu_direct" "bin/gpu_direct/server -T rc -a $B -s 128k" bin/gpu_direct/client -T rc -a $A -c \
    -n 50 -s 100001 $to
# This NIC has no DC: the server, whose default it is, ends at once and names the option.
if said=$(timeout $((60 * patience)) bin/gpu_direct/server -a $B 2>&1) ||
    ! grep -q -- '--transport rc' <<<"$said"; then
    failed=$((failed + 1))
    echo "FAILED gpu_direct by DC: $said"
fi

head -c 300001 "$work/note" >"$work/small"
router="bin/freeflow_gdr/router -d $A -s $work/s -b 1M -t 50 &
    exec bin/freeflow_gdr/client -s $work/s -f $work/small -o $work/back -w 50"
both "freeflow_gdr" "$router" bin/freeflow_gdr/peer -d $B -f "$work/small" -o "$work/answer" -t 40 \
    10.77.0.1
cmp "$work/small" "$work/back" && cmp "$work/small" "$work/answer" || failed=$((failed + 1))

cat "$work/mallocs"
grep -q ', 0 allocations' "$work/mallocs" || {
    failed=$((failed + 1))
    echo "FAILED nothing was counted"
}
echo "$passed passed, $failed failed"
rm -rf "$work"
[ "$failed" = 0 ]
