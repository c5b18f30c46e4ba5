#!/usr/bin/env bash
# Usage: verbs_suite.sh SOURCE. Runs the test suite of a release of rdma-core on the drop-in, three
# times, and writes its section of docs/records/VERBS-SUITE.md. SOURCE is rdma-core's source tree,
# built with pyverbs as its README describes, so that SOURCE/build/python/pyverbs exists.
set -eu
[ $# = 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
source=$(cd "$1" && pwd)
[ -d "$source/build/python/pyverbs" ] || {
    printf '%s is not built with pyverbs\n' "$source" >&2
    exit 2
}
cd "$(dirname "$0")/.."
GDRC_RDMA_CORE=$source GDRC_BLESS=1 cargo test -p gdrcore-tests --test verbs_suite -- --nocapture \
    another_release
