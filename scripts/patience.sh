#!/usr/bin/env bash
# Prints the whole number by which the tests' time limits are multiplied on this machine: 1 if it is
# idle and has two CPUs or more.
#
# Measures: one worker per CPU that this process may use takes a second of CPU time. The wall time
# that this takes is the slowdown by other load; with a single CPU the tests are twice as slow
# again. If GDRC_TEST_PATIENCE is set, prints that.
set -eu
most=10
if [ -n "${GDRC_TEST_PATIENCE:-}" ]; then
    echo "$GDRC_TEST_PATIENCE"
    exit 0
fi
cpus=$(nproc)
began=${EPOCHREALTIME/[.,]/}
# The shell says of a worker that it was killed whenever it sees that.
exec 2>/dev/null
for ((i = 0; i < cpus; i++)); do
    # The kernel ends the worker at its limit.
    (ulimit -t 1 && while :; do :; done) &
done
wait
took=$((${EPOCHREALTIME/[.,]/} - began))
# Up to a quarter of a second more counts as no load.
factor=$(((took - 250000 + 999999) / 1000000))
[ "$factor" -ge 1 ] || factor=1
[ "$cpus" -gt 1 ] || factor=$((2 * factor))
[ "$factor" -le "$most" ] || factor=$most
echo "$factor"
