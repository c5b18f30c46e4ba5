#!/usr/bin/env bash
# interop_long.sh [MIB [LOSSY_MIB]]: transfers MIB (20 GiB) between our soft device and Linux's rxe
# over a clean wire, and LOSSY_MIB (1 GiB) over each of two wires that lose 1 % and 5 % of the
# packets, compares every byte, and writes the result to docs/records/INTEROP.md. Needs what the
# test `interop` needs.
set -eu
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
${CARGO:-cargo} build -q -p gdrcore-tests --bin interop
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
cc -O2 -Wall -Wextra -o "$share/peer" tests/vm/peer.c -libverbs
tests/vm/vm.sh setup
net=-n
unshare -n true 2>/dev/null || net=-Urn
unshare $net -pf --mount-proc --kill-child "$CARGO_TARGET_DIR/debug/interop" long "$share" "$@"
{
    sed '/^## A longer run$/,$d' docs/records/INTEROP.md
    printf '## A longer run\n\nWritten by `scripts/interop_long.sh`.\n\n'
    cat "$share/LONG.md"
} >"$share/INTEROP.md"
cp "$share/INTEROP.md" docs/records/INTEROP.md
