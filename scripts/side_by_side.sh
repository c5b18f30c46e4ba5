#!/usr/bin/env bash
# side_by_side.sh [NUMBER]: runs the test programs of gdrcore-tests, so many at once (by default one
# more than there are CPUs), since most of them mostly wait for what they have started. Each has
# addresses, ports and files of its own (testkit's `place`, `scratch`). What a program prints comes
# in one piece once it has ended. TEST_PROGRAMS="name name" runs only those.
set -u
cd "$(dirname "$0")/../tests" || exit 1
at_once=${1:-$(($(nproc) + 1))}
CARGO=${CARGO:-cargo}
# Those that take longest begin first, so that none of them runs on by itself.
first="interop dist_roots ends verbs_suite right_programs router doctor"
# These have the machine for themselves, after all others.
alone="router_qos congestion"
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT

# Name and path of each program; units for those of the crate's own files.
programs() {
    "$CARGO" test -p gdrcore-tests --no-run 2>&1 | awk -v root="$PWD/.." '
        /^ *Executable / {
            path = substr($NF, 2, length($NF) - 2)
            if (path !~ /^\//) path = root "/" path
            name = $(NF - 1)
            sub(/^(src|tests)\//, "", name)
            sub(/(\/main)?\.rs$/, "", name)
            print ($2 == "unittests" ? "unit:" : "") name, path
            next
        }
        { print >"/dev/stderr" }'
    return "${PIPESTATUS[0]}"
}

# in_turn NAME PATH: runs a program, and prints what it said in one piece.
in_turn() {
    local rc=0 TIMEFORMAT="$1: %0R s, of CPU %0U + %0S s"
    { time "$2" >"$logs/$1" 2>&1; } 2>"$logs/$1.time" || rc=$?
    {
        flock 9
        printf '     Running %s\n' "$1"
        cat "$logs/$1"
        [ "$rc" = 0 ] || printf 'error: %s failed (exit %s)\n' "$1" "$rc"
        cat "$logs/$1.time"
    } 9>"$logs/turn"
    return "$rc"
}

# all NUMBER NAME...: runs programs, so many at once; fails if one does.
all() {
    local most=$1 running=0 failed=0 name
    shift
    for name; do
        if [ "$running" = "$most" ]; then
            wait -n || failed=1
            running=$((running - 1))
        fi
        in_turn "$name" "${path[$name]}" &
        running=$((running + 1))
    done
    while [ "$running" -gt 0 ]; do
        wait -n || failed=1
        running=$((running - 1))
    done
    return "$failed"
}

listed=$(programs) || exit 1
declare -A path
while read -r name file; do
    name=${name//\//-}
    if [ -z "${TEST_PROGRAMS:-}" ] || [[ " $TEST_PROGRAMS " = *" $name "* ]]; then
        path[$name]=$file
    fi
done <<<"$listed"
for name in ${TEST_PROGRAMS:-}; do
    [ -n "${path[$name]:-}" ] || { echo "no test program has the name $name" >&2; exit 2; }
done
# chosen NAME...: those of the names that are to run.
chosen() {
    for name; do [ -z "${path[$name]:-}" ] || printf '%s\n' "$name"; done
}
mapfile -t others < <(printf '%s\n' "${!path[@]}" | sort |
    grep -vxF "$(printf '%s\n' $first $alone)")
failed=0
# shellcheck disable=SC2046,SC2086 # names are words
all "$at_once" $(chosen $first) "${others[@]}" || failed=1
# shellcheck disable=SC2046,SC2086
all 1 $(chosen $alone) || failed=1
exit "$failed"
