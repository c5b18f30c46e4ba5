#!/usr/bin/env bash
# Usage: ucx_gtest.sh GTEST. Runs the verbs part of UCX's own tests on the drop-in and writes the
# counts into docs/records/UCX-GTEST.md. GTEST is test/gtest/gtest of a source tree that was
# configured with --enable-gtest and --without-mlx5, and built. Takes 20 minutes on a quiet machine
# and 5 GB of memory. UCX_GTEST_FILTER names other tests.
set -eu
[ $# = 1 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
gtest=$(realpath "$1")
cd "$(dirname "$0")/.."
[ -x build/bin/gdrcore-run ] || make --no-print-directory dropin >&2
page=docs/records/UCX-GTEST.md
log=$(mktemp)
trap 'rm -f "$log"' EXIT
left_out='*flush_ep_remote*:ud_verbs/test_uct_peer_failure_multiple.*:*lmc*:*get_size_limit*'
filter=${UCX_GTEST_FILTER:-"rc_verbs/*:ud_verbs/*:ib/test_md*:ib/test_ib_md*:-$left_out"}
build/bin/gdrcore-run --address 127.104.3.1 "$gtest" --gtest_filter="$filter" >"$log" 2>&1 || true

# Each test: its transport, what became of it, and of one that was skipped why.
outcomes() {
    awk '
        function put(what) { outcome[name] = name "\t" what }
        /^\[ RUN / { name = $4; why = ""; put("not finished") }
        /^\[ +SKIP / { why = $0; sub(/^[^(]*/, "", why) }
        /^\[ +OK / && name == $4 { put(why == "" ? "passed" : "skipped\t" why) }
        /^\[ +FAILED / && name == substr($4, 1, length(name)) { put("failed") }
        END { for (n in outcome) print outcome[n] }
    ' "$log" | sort
}
count() { outcomes | awk -F'\t' -v p="$1/" -v w="$2" 'index($1, p) == 1 && $2 == w' | wc -l; }

{
    cat <<'PAGE'
# UCX's own tests on the drop-in

The verbs part of UCX's gtest, unmodified: `scripts/ucx_gtest.sh GTEST`. It drives the transports
`rc_verbs` and `ud_verbs` and the memory of an InfiniBand device. Left out are

- `flush_ep_remote`: UCX's remote flush is a READ with a key that only a device of mlx5 has; on any
  other the READ is refused, and UCX then calls a null pointer;
- `test_uct_peer_failure_multiple` over `ud_verbs`, whose 256 receivers take 6 GB;
- `lmc`: there is no InfiniBand subnet;
- `get_size_limit`, which needs UCX's checks of parameters (`--enable-params-check`).

Three fail on purpose or by the machine: `sys_device`, since the device's folder in `/sys` has no
PCI numbers ([DROPIN.md](../using/DROPIN.md#files-of-a-device)); `size_no_flush_remote`, which
expects the key of a remote flush in addresses; `envelope`, which counts errors in UCX's log, where
the kernel has no NETLINK_RDMA: UCX logs one each time that it opens a device (it passes with
`UCX_LOG_LEVEL=fatal`).

PAGE
    printf '| Transport | Passed | Skipped | Failed | Not finished |\n|---|---|---|---|---|\n'
    for p in rc_verbs ud_verbs ib; do
        printf '| %s | %s | %s | %s | %s |\n' $p "$(count $p passed)" "$(count $p skipped)" \
            "$(count $p failed)" "$(count $p 'not finished')"
    done
    echo
    echo 'Those that did not pass:'
    echo
    outcomes | awk -F'\t' '$2 != "passed" && $2 != "skipped" { print "- `" $1 "`: " $2 }'
    printf '\nWhy tests skip themselves:\n\n'
    echo "| Transport | Tests | Reason; in quotation, UCX's |"
    printf '|---|---|---|\n'
    outcomes | awk -F'\t' '
        $2 == "skipped" {
            split($1, part, "/")
            why = $3
            if (why ~ /check_atomics/) why = "UCX offers no such atomic operation over it"
            else if (why ~ /check_/) why = "UCX offers nothing of what it tests over it"
            else why = "`" why "`"
            n[part[1] " | " why]++
        }
        END { for (k in n) { split(k, f, " \\| "); print "| " f[1] " | " n[k] " | " f[2] " |" } }
    ' | sort
} >"$page"
cat "$page"
