#!/usr/bin/env bash
# Usage: fabtests.sh PREFIX. Runs the quick set of libfabric's own tests on the drop-in, between two
# processes of one address, over verbs (msg) and over verbs;ofi_rxm, and writes the counts into
# docs/records/FABTESTS.md. PREFIX has libfabric with these providers and fabtests, built from one
# source tree and installed. As root: the tests get namespaces of their own, because libfabric skips
# loopback addresses, and because fabtests ends every process whose name begins with fi_.
set -eu
[ $# = 1 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
prefix=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
make --no-print-directory dropin >&2
run=$PWD/build/bin/gdrcore-run
page=docs/records/FABTESTS.md
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# What no device can pass, by pattern.
cat > "$out/left_out" <<'LIST'
fi_msg_sockets
fi_rma_bw -e msg -o writedata
LIST

# $1: the provider; $2: what fabtests excludes for it itself.
tests() {
    cat "$prefix/share/fabtests/test_configs/$2" "$out/left_out" > "$out/exclude"
    unshare --net --pid --fork --mount-proc -- bash -euc '
        ip link set lo up
        ip link add d0 type veth peer name d1
        ip addr add 10.9.0.1/24 dev d0
        ip link set d0 up
        ip link set d1 up
        export PATH=$2/bin:$PATH LD_LIBRARY_PATH=$2/lib
        "$1" --address 10.9.0.1 "$2/bin/runfabtests.sh" -t quick -T 60 \
            -f "$4" -s 10.9.0.1 -c 10.9.0.1 "$3" || true
    ' - "$run" "$prefix" "$1" "$out/exclude"
}

tests verbs verbs/verbs.exclude | tee "$out/verbs"
tests 'verbs;ofi_rxm' ofi_rxm/ofi_rxm.exclude | tee "$out/verbs;ofi_rxm"

count() { sed -n "s/^# $1 *\([0-9]*\)$/\1/p" "$out/$2"; }
{
    cat <<'PAGE'
# libfabric's own tests on the drop-in

The quick set of fabtests, between two processes of one address, unmodified:
`scripts/fabtests.sh PREFIX`. "Not run" are tests that the provider says it does not support, those
that fabtests itself excludes for it, and two that fail on any device: `fi_msg_sockets` resolves an
address twice with one `rdma_cm_id`, which the kernel refuses too, and its server then has the port
of the next test; `fi_rma_bw -e msg -o writedata` asks the provider for a mode without naming it
(FI_RX_CQ_DATA).

PAGE
    printf 'libfabric %s.\n\n' "$(LD_LIBRARY_PATH=$prefix/lib "$prefix/bin/fi_info" --version |
        sed -n 's/^libfabric: //p')"
    printf '| Provider | Pass | Not run | Fail |\n|---|---|---|---|\n'
    for p in verbs 'verbs;ofi_rxm'; do
        printf '| %s | %s | %s | %s |\n' "$p" "$(count 'Total Pass' "$p")" \
            "$(count 'Total Notrun\/Excluded' "$p")" "$(count 'Total Fail' "$p")"
    done
    if grep -q ' Fail$' "$out/verbs" "$out/verbs;ofi_rxm"; then printf '\nThose that fail:\n\n'; fi
    for p in verbs 'verbs;ofi_rxm'; do
        sed -n "s/^\(fi_.*[^ ]\)  *Fail$/- $p: \`\1\`/p" "$out/$p"
    done
} > "$page"
cat "$page"
