#!/usr/bin/env bash
# Prints by what whole number the tests' limits of time are multiplied here; 1 on an idle machine
# with two CPUs or more.
#
# One worker per CPU that this process may use takes a second of CPU time. How much longer it takes
# on the clock is how much slower the tests are beside what else runs here; with a single CPU they
# are twice as slow again. GDRC_TEST_PATIENCE, where it is set, is the answer.
set -eu
most=10
if [ -n "${GDRC_TEST_PATIENCE:-}" ]; then
    echo "$GDRC_TEST_PATIENCE"
    exit 0
fi
cpus=$(nproc)
began=${EPOCHREALTIME/[.,]/}
for ((i = 0; i < cpus; i++)); do
    # The kernel ends it at its limit.
    (ulimit -t 1 && while :; do :; done) &
done 2>/dev/null
wait 2>/dev/null
took=$((${EPOCHREALTIME/[.,]/} - began))
# A quarter more than the second is no load.
factor=$(((took - 250000 + 999999) / 1000000))
[ "$factor" -ge 1 ] || factor=1
[ "$cpus" -gt 1 ] || factor=$((2 * factor))
[ "$factor" -le "$most" ] || factor=$most
echo "$factor"
