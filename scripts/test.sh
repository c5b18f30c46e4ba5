#!/usr/bin/env bash
# Runs every check of the repository; the last line is 'N passed, N failed, N skipped'.
#
# A check that cannot run here prints a line 'skipped: REASON' or 'test NAME ... skipped: REASON',
# and counts as skipped, not as passed.
# Logs: $CARGO_TARGET_DIR/test-logs. TEST_ONLY="name name" runs only those stages. Time limits, of
# the stages and inside the tests, grow with the load of the machine: scripts/patience.sh measures
# it at the start, and what comes later is seen by the load average.
set -u
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
# All is built once here: what would make the next build shorter only takes disk.
export CARGO_INCREMENTAL=0
CARGO=${CARGO:-cargo}
logs=$CARGO_TARGET_DIR/test-logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0
failures=()

# count LOG RC: prints how many checks of a stage's log passed, failed and were skipped. Counted are
# the closing lines of runners: those of cargo test, and 'N passed, N failed[, N skipped]'. A stage
# without a runner is one check, and a runner that ends without a failed test or a closing line is a
# failure. A test that was skipped, or a part of it, has a line 'test NAME ... skipped: REASON'
# beside the 'ok' of libtest, which knows no skip.
count() {
    awk -v rc="$2" '
        /^test result: / {
            runners++
            for (i = 1; i < NF; i++) {
                if ($(i + 1) ~ /^passed/) p += $i
                if ($(i + 1) ~ /^failed/) f += $i
                if ($(i + 1) ~ /^ignored/) s += $i
            }
        }
        /^[0-9]+ passed, [0-9]+ failed/ { runners++; p += $1; f += $3; s += $5 }
        /^test .* \.\.\. skipped: / {
            s++
            if (!($2 " " runners in without)) { without[$2 " " runners]; moved++ }
        }
        /^skipped: / { s++ }
        END {
            if (!runners) { f = (rc != 0); p = (rc == 0 && !s) }
            else { p -= moved; if (rc != 0 && !f) f = 1 }
            printf "%d %d %d\n", p, f, s
        }' "$1"
}

# causes LOG: prints the errors of a log and its failed tests, each panic with its message. Panics
# in passed tests (of a child that was killed) are shown as well: libtest does not say to which test
# they belong.
causes() {
    awk '
        /^error/ || /^test .*FAILED/ { print; next }
        /^thread .*panicked/ { left = 80 }
        /^(note: run with|---- |test )/ { left = 0 }
        left > 0 && NF { print substr($0, 1, 400); left-- }' "$1"
}

# spent SECONDS: prints how many thousandths of a second of an idle machine so many seconds are
# now, by the load average.
spent() {
    awk -v ms=$(($1 * 1000)) -v cpus="$(nproc)" -v least="$GDRC_TEST_PATIENCE" '{
        share = $1 / cpus
        if (share > 10) share = 10
        if (share < least) share = least
        printf "%d\n", ms / share
    }' /proc/loadavg
}

# limited SECONDS COMMAND...: runs a command, and ends it and its children after so many seconds of
# an idle machine with two CPUs. Exits as the command does, or with 124.
limited() {
    local left=$(($1 * 1000)) step=5 pid
    shift
    # With job control, so that it is a process group and ignores no signals.
    set -m
    "$@" </dev/null &
    pid=$!
    set +m
    trap 'kill -TERM -- "-$pid" 2>/dev/null; exit 130' INT TERM
    while [ "$left" -gt 0 ] && kill -0 "$pid" 2>/dev/null; do
        timeout "$step" tail --pid="$pid" -s 0.2 -f /dev/null
        left=$((left - $(spent "$step")))
    done
    if kill -0 "$pid" 2>/dev/null; then
        kill -TERM -- "-$pid"
        timeout 10 tail --pid="$pid" -s 0.2 -f /dev/null || kill -KILL -- "-$pid"
        wait "$pid" 2>/dev/null
        return 124
    fi
    wait "$pid"
}

# stage NAME SECONDS COMMAND...: runs a stage until it ends, whatever its result, and prints its
# closing line. SECONDS are for an idle machine with two CPUs.
stage() {
    local name=$1 limit=$2 log=$logs/$1.log start=$SECONDS rc p f s
    shift 2
    if [ -n "${TEST_ONLY:-}" ] && [[ " $TEST_ONLY " != *" $name "* ]]; then return; fi
    printf '== %s: %s\n' "$name" "$*"
    limited "$limit" "$@" >"$log" 2>&1
    rc=$?
    read -r p f s < <(count "$log" "$rc")
    if [ "$rc" != 0 ]; then
        causes "$log" | head -n 200
        tail -n 40 "$log"
        [ "$rc" = 124 ] &&
            printf '%s: over its limit of %s s of an idle machine\n' "$name" "$limit"
        failures+=("$name (exit $rc, $log)")
    fi
    # The runners' own closing lines, without those of empty test binaries.
    grep -hE '^(test result:|[0-9]+ passed, )' "$log" | grep -v ' 0 passed; 0 failed; 0 ignored' |
        sed 's/^/   /'
    sed -n 's/^\(test .* \.\.\. \)\{0,1\}skipped: //p' "$log" | sort | uniq -c |
        sed 's/^ *\([0-9]*\) /   skipped \1: /'
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%s: %d passed, %d failed, %d skipped (%d s)\n' "$name" "$p" "$f" "$s" \
        $((SECONDS - start))
}

# with COMPONENT COMMAND...: runs the command if cargo has that component, else skips.
with() {
    local component=$1
    shift
    if "$CARGO" "$component" --version >/dev/null 2>&1; then "$@"; else
        echo "skipped: cargo $component is not installed" \
            "(rustup component add ${component/fmt/rustfmt})"
    fi
}
export -f with
export CARGO

# In a function, so that bash reads all of it before the first stage runs: a stage may take minutes,
# in which this file may change.
main() {
    GDRC_TEST_PATIENCE=$(scripts/patience.sh) || exit 1
    export GDRC_TEST_PATIENCE
    printf 'limits of time: %s times those of an idle machine with two CPUs\n' "$GDRC_TEST_PATIENCE"
    df --output=avail -BG "$CARGO_TARGET_DIR" |
        awk 'NR == 2 { print "free disk: " $1 ", of which some 5G are used" }'
    stage fmt 60 bash -c 'with fmt $CARGO fmt --all --check'
    stage clippy 900 bash -c 'with clippy $CARGO clippy --workspace --all-targets -- -D warnings'
    stage unit 1200 "$CARGO" test --workspace --exclude gdrcore-tests --no-fail-fast
    # Once each: checks that they run, not their speed.
    stage bench 600 "$CARGO" test -p bench --benches --examples
    if [ -e core/tests/loom_ring.rs ]; then
        # In release mode, since loom's exploration is slow; link-time optimisation is not needed.
        stage loom 900 env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$CARGO_TARGET_DIR/loom" \
            CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
            CARGO_PROFILE_RELEASE_DEBUG=0 \
            "$CARGO" test -p gdrcore-core --release --test loom_ring --test loom_sleep \
            --test loom_shared --test loom_turns
    fi
    stage musl 600 scripts/musl.sh
    stage aarch64 600 scripts/aarch64.sh core
    stage build 900 make --no-print-directory all
    stage verbs 900 scripts/verbs.sh
    stage sanitizers 400 scripts/asan.sh
    stage sim 600 "$CARGO" run --release -q -p sim -- --swarm --packets "${SIM_PACKETS:-10000000}"
    stage integration 2400 scripts/side_by_side.sh

    if [ ${#failures[@]} -gt 0 ]; then
        printf 'failed: %s\n' "${failures[@]}"
    fi
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ ${#failures[@]} = 0 ] && [ "$failed" = 0 ]
}
main
exit $?
