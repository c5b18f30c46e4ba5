#!/bin/sh
# Checks that library, drop-in and router compile against musl's C library, whose types differ from
# glibc's in places.
set -eu
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-musl
if ! [ -d "$(rustc --print target-libdir --target "$target")" ]; then
    echo "skipped: Rust's library for musl is not installed (rustup target add $target)"
    exit 0
fi
# Shared libraries need the dynamic musl.
RUSTFLAGS="-C target-feature=-crt-static -D warnings" exec "${CARGO:-cargo}" check \
    --target "$target" -p gdrcore -p gdrcore-dropin -p gdrcore-mlx5 -p gdrcore-preload \
    -p gdrcore-run -p gdrcore-router -p gdrcore-mempool
