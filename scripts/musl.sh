#!/usr/bin/env bash
# musl.sh [OUT]: builds library, drop-in and gdrcore-run against musl's C library, whose types
# differ from glibc's in places, and has two processes exchange messages over them; checks the
# router. Into OUT it puts a stripped release, as `make install` does for glibc.
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-musl
out=${1:-}
rust=$(rustc --print target-libdir --target "$target")
if ! [ -d "$rust" ]; then
    echo "skipped: Rust's library for musl is not installed (rustup target add $target)"
    exit 0
fi
# Shared libraries need the dynamic musl.
export RUSTFLAGS="-C target-feature=-crt-static -D warnings"
cargo=${CARGO:-cargo}
if [ -z "$out" ]; then
    "$cargo" check --target "$target" -p gdrcore -p gdrcore-dropin -p gdrcore-mlx5 \
        -p gdrcore-preload -p gdrcore-run -p gdrcore-router -p gdrcore-mempool
fi
if ! command -v musl-gcc >/dev/null; then
    echo "skipped: musl-gcc is not installed (apt-get install musl-tools)"
    exit 0
fi
built=${CARGO_TARGET_DIR:-target}/$target
link=$built/link
mkdir -p "$link"
# Rust takes the unwinder of the system, which is not musl's here; its own is linked instead.
echo "INPUT($rust/self-contained/libunwind.a)" >"$link/libgcc_s.so"
lld=$(echo "$rust"/../../*/bin/gcc-ld)
# Where /lib is no link, as in a root of Debian 11, musl-gcc finds the static libc alone.
RUSTFLAGS+=" -L$(realpath "$link") -L/lib/$(uname -m)-linux-musl"
RUSTFLAGS+=" -C link-arg=-B$lld -C link-arg=-fuse-ld=lld"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=musl-gcc
profile=dev folder=debug
if [ -n "$out" ]; then profile=release folder=release; fi
"$cargo" build --target "$target" --profile "$profile" -p gdrcore -p gdrcore-dropin \
    -p gdrcore-mlx5 -p gdrcore-preload -p gdrcore-run
tree=$out
if [ -z "$out" ]; then
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
fi
rm -rf "$tree"
put() { install -D -m "$1" "$2" "$tree/$3"; }
put 755 "$built/$folder/libgdrcore.so" lib/libgdrcore.so.0
ln -s libgdrcore.so.0 "$tree/lib/libgdrcore.so"
put 644 include/gdrcore.h include/gdrcore.h
for library in dropin:libibverbs mlx5:libmlx5; do
    put 755 "$built/$folder/libgdrcore_${library%:*}.so" "lib/gdrcore/${library#*:}.so.1"
    ln -s "${library#*:}.so.1" "$tree/lib/gdrcore/${library#*:}.so"
done
put 755 "$built/$folder/libgdrcore_preload.so" lib/gdrcore/libgdrcore_preload.so
put 755 "$built/$folder/gdrcore-run" bin/gdrcore-run
for file in "$tree"/lib/*.so.0 "$tree"/lib/gdrcore/*.so.1 "$tree/bin/gdrcore-run"; do
    needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
    # Another libc linked into it would be a second one in the process.
    if [ "$needed" != "libc.so " ]; then
        echo "$file needs '$needed', not musl's libc.so alone" >&2
        exit 1
    fi
done
if [ -n "$out" ]; then
    for file in LICENSE-MIT LICENSE-APACHE README.md; do
        put 644 "$file" "share/doc/gdrcore/$file"
    done
    find "$tree" -type f \( -name '*.so*' -o -name gdrcore-run \) \
        -exec strip --strip-unneeded --remove-section=.comment {} +
    exit 0
fi
if ! [ -e /usr/include/infiniband/verbs.h ]; then
    echo "skipped: no <infiniband/verbs.h> for a program of musl's (apt-get install libibverbs-dev)"
    exit 0
fi
musl-gcc -O1 -Wall -Werror -D_GNU_SOURCE -idirafter /usr/include \
    -idirafter "/usr/include/$(uname -m)-linux-gnu" -o "$tree/two_hosts" tests/c/two_hosts.c \
    -L"$tree/lib/gdrcore" -libverbs
for path in auto udp; do
    told=$(timeout 120 "$tree/bin/gdrcore-run" --path "$path" "$tree/two_hosts" \
        127.83.98.1 127.83.98.2 2>&1) || { echo "$path: $told" >&2; exit 1; }
    # Nor is it warned of the loader.
    [ "$told" = "every byte arrived" ] || { echo "$path: $told" >&2; exit 1; }
done
