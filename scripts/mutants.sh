#!/bin/sh
# Plain faults, made by cargo-mutants: an operator, a condition, a field or a whole function is
# replaced, in core, in the router, and in those modules of backends/net whose tests depend on no
# schedule. The faults that it cannot make are in tests/faults. All of them take days:
# `--file PATH` takes those of a file, `--shard 3/100` a part, `--list` runs none. The results are
# in build/mutants.out; the exit status is 2 if no test noticed some fault.
#
# mutants.sh [OPTION of cargo-mutants ...]
set -eu
cd "$(dirname "$0")/.."
command -v cargo-mutants >/dev/null || cargo install --locked cargo-mutants
mkdir -p build
case " $* " in
*' --file '*) ;;
*)
    set -- --file 'core/src/**' --file 'router/src/**' "$@"
    for module in addr pcap sock_diag 'udp/tx/*' shm/ring shm/messages shm/segment shm/relay 'via/*'
    do
        set -- --file "backends/net/src/$module.rs" "$@"
    done
    ;;
esac
exec cargo mutants --output build --timeout 300 --build-timeout 1800 "$@"
