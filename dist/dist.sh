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
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || SOURCE_DATE_EPOCH=0
fi
export SOURCE_DATE_EPOCH
umask 022

# The old system, with its compiler; Rust is this machine's.
make_root() {
    [ ! -e "$1" ] || return 0
    rm -rf "$1.part"
    mkdir -p "$(dirname "$1")"
    # Nothing is configured there: the links that scripts of packages make are made here.
    mmdebstrap --variant=extract --quiet --aptopt='Acquire::Check-Valid-Until "false"' \
        --include="$packages" "$release" "$1.part"
    ln -sf bash "$1.part/bin/sh"
    ln -sf gawk "$1.part/usr/bin/awk"
    ln -sf gcc "$1.part/usr/bin/cc"
    mkdir -p "$1.part"/{opt/rust,opt/cargo,src,out}
    mv "$1.part" "$1"
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

if [ "${1:-}" = --here ]; then
    trees=$dist/here
    mkdir -p "$trees"
    dist/trees.sh "$trees"
else
    trees=$dist/old
    # The packages name it: another list makes another root.
    root=$dist/root-$release-$(echo "$packages" | cksum | cut -d' ' -f1)
    make_root "$root"
    cargo fetch --locked --quiet
    rm -rf "$dist/src"
    mkdir -p "$dist/src" "$trees"
    # With the time of now: cargo takes a file for compiled that changed while it last compiled.
    git ls-files -z | tar --null --files-from=- --create |
        tar --extract --touch --directory "$dist/src"
    in_root "$root" dist/trees.sh /out
    in_root "$root" scripts/musl.sh /out/musl
fi
cd "$repository"
[ "$trees" = "$dist/old" ] && out=$dist/out || out=$trees/out
exec python3 -B dist/pack.py --trees "$trees" --out "$out"
