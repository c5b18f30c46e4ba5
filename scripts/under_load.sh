#!/usr/bin/env bash
# Runs tests that wait for times or counts again and again beside busy loops, LOOPS of them (one
# per CPU if it is not set).
#
# under_load.sh RUNS [PROGRAM...]: runs each test program of tests/tests RUNS times (default: those
# of `waiting` below), JOBS of them at a time (1 if it is not set), and prints for each how many
# runs passed. The last line is 'N passed, N failed'. Logs of failed runs:
# $CARGO_TARGET_DIR/test-logs/under-load.
set -u
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
waiting=(causes channels cm congested congestion error_completions hostile_peers hostile_signals
    idle idle_connections keepalive other_users path_mtu patience processes router_qos
    router_two_hosts share_leaks shared_address shared_memory threads)
runs=${1:?usage: under_load.sh RUNS [PROGRAM...]}
shift
programs=("${@:-${waiting[@]}}")
logs=$CARGO_TARGET_DIR/test-logs/under-load
mkdir -p "$logs"

declare -A path
for name in "${programs[@]}"; do
    built=$(cargo test -q -p gdrcore-tests --test "$name" --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | grep "/deps/$name-" | tail -n 1)
    path[$name]=${built:?"$name: it was not built"}
done

loops=()
for ((i = 0; i < ${LOOPS:-$(nproc)}; i++)); do
    (while :; do :; done) &
    loops+=($!)
done
trap 'kill "${loops[@]}" 2>/dev/null' EXIT
export GDRC_TEST_PATIENCE=${GDRC_TEST_PATIENCE:-$(scripts/patience.sh)}
printf 'limits of time: %s times those of an idle machine with two CPUs\n' "$GDRC_TEST_PATIENCE"

# repeat NAME: the runs of one program.
repeat() {
    local name=$1 ok=0 n
    for ((n = 1; n <= runs; n++)); do
        if (cd tests && timeout --kill-after=10 $((120 * GDRC_TEST_PATIENCE)) "${path[$name]}") \
            >"$logs/$name.$n" 2>&1 </dev/null; then
            ok=$((ok + 1))
            rm -f "$logs/$name.$n"
        else
            printf '%s: run %d failed: %s\n' "$name" "$n" "$logs/$name.$n"
        fi
    done
    printf '%s: %d of %d runs passed\n' "$name" "$ok" "$runs"
    echo "$ok" >"$logs/$name.passed"
}

rm -f "$logs"/*.passed
workers=()
for name in "${programs[@]}"; do
    while [ ${#workers[@]} -ge "${JOBS:-1}" ]; do
        wait -n "${workers[@]}"
        alive=()
        for pid in "${workers[@]}"; do kill -0 "$pid" 2>/dev/null && alive+=("$pid"); done
        workers=("${alive[@]}")
    done
    repeat "$name" &
    workers+=($!)
done
wait "${workers[@]}"
passed=$(cat "$logs"/*.passed | awk '{ n += $1 } END { print n + 0 }')
failed=$((runs * ${#programs[@]} - passed))
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
