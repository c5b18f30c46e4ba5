#!/usr/bin/env bash
# aarch64.sh [core]: builds for aarch64 and runs the tests of core, backends/net and ffi, a hundred
# worlds of the simulator, a ping-pong on the drop-in and the demo under qemu-user; `core`: core's
# alone. Without Rust's library, the cross compiler or qemu-user it says so and skips.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
system=/usr/aarch64-linux-gnu
lack() {
    echo "skipped: $1 is not installed ($2)"
    exit 0
}
[ -d "$(rustc --print target-libdir --target "$target")" ] || lack "Rust's library for aarch64" \
    "rustup target add $target"
if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! [ -e "$system/lib/libc.so.6" ]; then
    lack "the cross compiler" "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
fi
command -v qemu-aarch64 >/dev/null || lack "qemu-aarch64" "apt-get install qemu-user"
. scripts/cross.sh
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $system"
# tests PACKAGE NAME...: runs its tests but those of these names. One that is of no test says so: a
# name may have changed.
tests() {
    local package=$1 cut=() all
    shift
    all=$("${CARGO:-cargo}" test -q --target "$target" -p "$package" "${what[@]}" -- --list)
    for name; do
        grep -q "$name" <<<"$all" || { echo "$package has no test $name"; exit 1; }
        cut+=(--skip "$name")
    done
    "${CARGO:-cargo}" test -q --target "$target" -p "$package" "${what[@]}" -- "${cut[@]}"
}

what=(--lib --test fault --test golden)
tests gdrcore-core
[ "${1:-}" != core ] || exit 0

# What qemu-user 7.2 does not do as Linux does: MADV_POPULATE_WRITE and MADV_WIPEONFORK, sock_diag,
# flow labels, namespaces of threads, and SO_PASSRIGHTS, without which descriptors are closed by
# another thread a little later. process_vm_writev is not used on aarch64 (shm/cma.rs).
what=(--lib)
tests gdrcore-net network:: sock_diag:: a_port_is_the_peers peers_of_other_hosts \
    udp::tests::header fault::tests fork::tests cma:: grant_by_address granted_by_address \
    descriptors_that_come_along shm::listener shm::port shm::relay memory_that_has_grown
tests gdrcore context_of_the_parent
"${CARGO:-cargo}" run --target "$target" -q -p sim -- --seeds 0..100

"${CARGO:-cargo}" build --target "$target" -q -p gdrcore -p gdrcore-dropin
built=${CARGO_TARGET_DIR:-target}/$target/debug
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp "$built/libgdrcore_dropin.so" "$dir/libibverbs.so.1"
if [ -e /usr/include/infiniband/verbs.h ]; then
    aarch64-linux-gnu-gcc -O1 -Wall -Werror -D_GNU_SOURCE -idirafter /usr/include \
        -o "$dir/two_hosts" tests/c/two_hosts.c -L"$dir" -l:libibverbs.so.1
    for path in auto udp; do
        GDRC_PATH=$path timeout 120 qemu-aarch64 -L "$system" -E LD_LIBRARY_PATH="$dir" \
            "$dir/two_hosts" 127.83.99.1 127.83.99.2
    done
else
    echo "skipped: the drop-in's ping-pong: no <infiniband/verbs.h> (libibverbs-dev)"
fi

# The demo's programs, each under qemu-user by its own name.
programs=(freeflow_gdr/router freeflow_gdr/client freeflow_gdr/peer rdma_copy/rdma_copy_file)
make --no-print-directory -C c-examples OUT="$dir/bin" CC=aarch64-linux-gnu-gcc \
    GDRCORE_LIBDIR="$(realpath "$built")" "${programs[@]/#/$dir/bin/}" >/dev/null
for program in "${programs[@]}"; do
    mv "$dir/bin/$program" "$dir/bin/$program.elf"
    # shellcheck disable=SC2016 # the script knows them
    printf '#!/bin/sh\nexec qemu-aarch64 -L %s "$0.elf" "$@"\n' "$system" >"$dir/bin/$program"
    chmod +x "$dir/bin/$program"
done
BIN=$dir/bin MB=16 ROUTER_ADDRESS=127.83.99.3 PEER_ADDRESS=127.83.99.4 c-examples/demo.sh
