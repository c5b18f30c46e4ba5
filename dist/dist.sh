#!/usr/bin/env bash
# dist.sh [--here]: builds and packs the artifacts into $CARGO_TARGET_DIR/dist/out. As root, in a
# root of an old Debian, so that they run on every later system, at fixed paths, so that two builds
# have the same bytes. --here builds with what this machine has, beside other builds: what comes out
# needs this machine's C library or a newer one.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
dist=${CARGO_TARGET_DIR:-$PWD/target}/dist
release=bullseye
packages=base-files,bash,binutils,coreutils,findutils,gawk,gcc,grep,libc6-dev,make,musl-tools,sed
packages+=,gcc-aarch64-linux-gnu,libc6-dev-arm64-cross
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || SOURCE_DATE_EPOCH=0
fi
export SOURCE_DATE_EPOCH
umask 022

# make_root RELEASE PACKAGES ARCHITECTURE [ARCHIVE]: a root with the files of packages, in $root.
# Packages and archive name it: others make another root. ARCHIVE is a line of sources.list.
make_root() {
    root=$dist/root-$1-$3-$(echo "$2${4:+ $4}" | cksum | cut -d' ' -f1)
    [ ! -e "$root" ] || return 0
    rm -rf "$root.part"
    mkdir -p "$dist"
    mmdebstrap --variant=extract --quiet --aptopt='Acquire::Check-Valid-Until "false"' \
        --architectures="$3" --include="$2" "$1" "$root.part" ${4:+"$4"} || return
    # Nothing is configured there: the links that scripts of packages make are made here.
    ln -sf bash "$root.part/bin/sh"
    ln -sf gawk "$root.part/usr/bin/awk"
    ln -sf gcc "$root.part/usr/bin/cc"
    mkdir -p "$root.part"/{opt/rust,opt/cargo,src,out}
    mv "$root.part" "$root"
}

# make_base RELEASE TREES ARCHITECTURE: the root of the OCI image, beside the trees. It has the
# release that the programs were built in. Where the mirror has not all of Debian's updates for
# another architecture than this machine's, it is of the release as it came out.
make_base() {
    local packages=ibverbs-utils,perftest
    rm -f "$2/base"
    make_root "$1" "$packages" "$3" || {
        [ "$3" != "$native" ] &&
            echo "the root of $3's image: without Debian's updates, which the mirror lacks" &&
            make_root "$1" "$packages" "$3" "deb http://deb.debian.org/debian $1 main"
    } || return
    ln -s "$root" "$2/base"
}

in_root() {
    local root=$1 rust cargo=${CARGO_HOME:-$HOME/.cargo}
    shift
    rust=$(rustc --print sysroot)
    bwrap --ro-bind "$root" / --dev /dev --proc /proc --tmpfs /tmp --unshare-net --unshare-pid \
        --ro-bind "$rust" /opt/rust --tmpfs /opt/cargo \
        --ro-bind "$cargo/registry" /opt/cargo/registry \
        --bind "$dist/src" /src --bind "$dist/old" /out --chdir /src --die-with-parent \
        --clearenv --setenv PATH /opt/rust/bin:/usr/bin:/bin --setenv HOME /tmp \
        --setenv CARGO_HOME /opt/cargo --setenv CARGO_NET_OFFLINE true \
        --setenv CARGO_INCREMENTAL 0 --setenv CARGO_TARGET_DIR /out/target \
        --setenv SOURCE_DATE_EPOCH "$SOURCE_DATE_EPOCH" --setenv LC_ALL C -- "$@"
}

native=$(dpkg --print-architecture)
if [ "${1:-}" = --here ]; then
    out=$dist/here/out
    trees=("$dist/here")
    mkdir -p "${trees[0]}"
    dist/trees.sh "${trees[0]}"
    make_base "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" "${trees[0]}" "$native" ||
        echo "no OCI image: no root of this system can be made here (mmdebstrap, as root)"
else
    out=$dist/out
    trees=("$dist/old")
    make_root "$release" "$packages" "$native"
    cargo fetch --locked --quiet
    rm -rf "$dist/src"
    mkdir -p "$dist/src" "$dist/old"
    # With the time of now: cargo takes a file for compiled that changed while it last compiled.
    git ls-files -z | tar --null --files-from=- --create |
        tar --extract --touch --directory "$dist/src"
    in_root "$root" dist/trees.sh /out
    in_root "$root" scripts/musl.sh /out/musl
    if [ -d "$(rustc --print target-libdir --target aarch64-unknown-linux-gnu)" ]; then
        trees+=("$dist/old/aarch64")
        mkdir -p "${trees[1]}"
        in_root "$root" dist/trees.sh /out/aarch64 aarch64 /out
        make_base "$release" "${trees[1]}" arm64 ||
            echo "no OCI image for aarch64: the archive has not all of its packages"
    else
        echo "nothing for aarch64: no library of Rust for it (rustup target add" \
            "aarch64-unknown-linux-gnu)"
    fi
    make_base "$release" "${trees[0]}" "$native"
fi
cd "$repository"
exec python3 -B dist/pack.py --trees "${trees[@]}" --out "$out"
