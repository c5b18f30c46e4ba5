#!/usr/bin/env bash
# Usage: deps.sh demo|demo-router|dist|test|compare|compare-router. Checks the tools that the build
# and the tests need. As root on a system with apt it installs missing ones; otherwise it names
# them. A missing tool of the tests is no error: its tests are skipped and name it.
set -u
what=${1:-test}

cd "$(dirname "$0")/.."
scripts/cargo_version.sh "${CARGO:-cargo}" || exit 1
missing_hard=()
command -v cc >/dev/null || missing_hard+=("cc: a C compiler, 'apt-get install gcc libc6-dev'")
command -v make >/dev/null || missing_hard+=("make: 'apt-get install make'")
if [ ${#missing_hard[@]} -gt 0 ]; then
    printf 'needed and not found:\n' >&2
    printf '  %s\n' "${missing_hard[@]}" >&2
    exit 1
fi
case $what in dist | test | compare | compare-router | demo-router) ;; *) exit 0 ;; esac

# Each line: check | Debian package | purpose.
needs() {
    case $what in
    dist) needs_dist; return ;;
    compare) needs_compare; return ;;
    compare-router) needs_compare_router; return ;;
    demo-router) needs_containers; return ;;
    esac
    needs_containers
    needs_dist
    needs_aarch64
    cat <<'EOF'
command -v lintian|lintian|rules of Debian's packages
/usr/bin/python3 -c 'import pytest'|python3-pytest|the fixtures of the wheel
command -v tshark|tshark|tshark and dumpcap read and record captures
command -v tcpdump|tcpdump|the lab's captures
/usr/bin/python3 -c 'import scapy.contrib.roce'|python3-scapy|an independent ICRC
command -v nft|nftables|firewalls that drop and reject
command -v ethtool|ethtool|links without segmentation offload
command -v runc|runc|containers of the router's tests
command -v umoci|umoci|the OCI image
command -v podman|podman|the OCI image, and containers without root
command -v systemd-nspawn|systemd-container|containers of systemd
test -e /usr/share/containers/seccomp.json|golang-github-containers-common|docker's list of calls
command -v etcd|etcd-server|the routers' map of hosts; the tests start members of their own
command -v etcdctl|etcd-client|the routers' map of hosts
command -v g++|g++|the header as C++17, the README's program as C++20
command -v pkg-config|pkg-config|the installed gdrcore.pc
command -v cmake|cmake|the installed CMake package
command -v mandoc|mandoc|the pages of the manual
command -v cmp|diffutils|byte comparison
command -v zsh|zsh|what zsh completes
command -v fish|fish|what fish completes
command -v musl-gcc|musl-tools|programs of musl on the drop-in
test -e /usr/include/infiniband/verbs.h|libibverbs-dev|libibverbs' layouts, rxe, the verbs device
test -e /usr/include/rdma/rdma_cma.h|librdmacm-dev|rdma-sys, which the verbs device is built with
ls /usr/lib/llvm-*/lib/libclang[.-][s0-9]*|libclang-dev|rdma-sys
command -v ibv_rc_pingpong|ibverbs-utils|the libibverbs drop-in
command -v rping|rdmacm-utils|librdmacm on the drop-in
command -v ibping|infiniband-diags|management datagrams on the drop-in
/usr/bin/python3 -c 'import pyverbs'|python3-pyverbs|rdma-core's own suite on the drop-in
command -v fi_pingpong|libfabric-bin|libfabric on the drop-in
command -v ucx_perftest|ucx-utils|UCX on the drop-in
command -v mpirun.openmpi|openmpi-bin|Open MPI on the drop-in
command -v mpicc.openmpi|libopenmpi-dev|Open MPI on the drop-in
command -v busybox|busybox|TCP programs over rsockets
command -v iperf|iperf|TCP programs over rsockets
command -v valgrind|valgrind|instructions, where the clock says nothing, and errors of memory
EOF
}

# Where Rust has its library for it. Debian's cross compiler conflicts with gcc-multilib.
needs_aarch64() {
    [ -d "$(rustc --print sysroot 2>/dev/null)/lib/rustlib/aarch64-unknown-linux-gnu/lib" ] &&
        ! dpkg -s gcc-multilib >/dev/null 2>&1 || return 0
    cat <<'EOF'
command -v qemu-aarch64|qemu-user|the tests of aarch64
command -v qemu-aarch64-static|qemu-user-static|the OCI image for aarch64
command -v aarch64-linux-gnu-gcc|gcc-aarch64-linux-gnu|the tests of aarch64
test -e /usr/aarch64-linux-gnu/include/stdio.h|libc6-dev-arm64-cross|the tests of aarch64
EOF
}

# Roots of Debian's releases, and packages for them.
needs_dist() {
    cat <<'EOF'
command -v bwrap|bubblewrap|roots of Debian's releases, and containers of the router's tests
command -v mmdebstrap|mmdebstrap|roots of Debian's releases, to build and to run in
command -v readelf|binutils|imports and exports of libraries, and their debug information apart
command -v dpkg-deb|dpkg|Debian packages
command -v python3|python3|packs the artifacts
EOF
}

# Containers made of namespaces, and the programs that run in them.
needs_containers() {
    cat <<'EOF'
command -v ip|iproute2|network namespaces with links
command -v unshare|util-linux|namespaces without capabilities
command -v ib_write_lat|perftest|the libibverbs drop-in
EOF
}

# The programs of `make compare`; missing ones are left out of its tables.
needs_compare() {
    cat <<'EOF'
command -v python3|python3|runs the comparison
python3 -m pip --version|python3-pip|the newest UCX
command -v mmdebstrap|mmdebstrap|the newest libfabric
command -v ucx_perftest|ucx-utils|UCX
command -v fi_pingpong|libfabric-bin|libfabric
command -v iperf3|iperf3|a TCP stream
command -v rsync|rsync|file copy
command -v nc|netcat-openbsd|file copy
command -v strace|strace|system calls of the file copies
command -v ib_send_lat|perftest|the drop-in
test -e /usr/include/infiniband/verbs.h|libibverbs-dev|threads on the drop-in
EOF
}

# The programs of `make compare-router`.
needs_compare_router() {
    cat <<'EOF'
command -v python3|python3|runs the comparison
command -v ip|iproute2|two hosts with a link
command -v unshare|util-linux|namespaces of the hosts
python3 -m pip --version|python3-pip|the newest UCX
command -v ucx_perftest|ucx-utils|UCX
command -v iperf3|iperf3|a TCP stream
command -v ibv_uc_pingpong|ibverbs-utils|the program beside FreeFlow's
EOF
}

# The machine with Linux's RDMA stack (tests/vm/vm.sh: qemu-system-x86, linux-image-amd64,
# rdma-core, perftest, tcpdump and their dependencies, 131 MB) is not installed: its test downloads
# it by apt into a cache.

packages=()
while IFS='|' read -r check package why; do
    if ! sh -c "$check" >/dev/null 2>&1; then
        packages+=("$package")
        printf 'not here: %s (%s)\n' "$package" "$why"
    fi
done < <(needs)
[ ${#packages[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    { timeout 300 apt-get update -q &&
        timeout 600 apt-get install -q -y --no-install-recommends "${packages[@]}"
        } >"$log" 2>&1 ||
        { tail -n 5 "$log"; printf 'apt could not install: %s; what needs them is skipped\n' \
        "${packages[*]}"; }
    rm -f "$log"
else
    printf 'what needs them is skipped; to have it: %s %s\n' \
        'sudo apt-get install --no-install-recommends' "${packages[*]}"
fi
exit 0
