#!/usr/bin/env bash
# Links the whole of gdrcore-core, with nothing but Rust's libcore, into a shared object of its own,
# and looks at what that imports: no library, and no symbol beyond copying and comparing bytes and
# the panic handler that a program brings. So core has no allocator, no system call and no C library
# in any function, reached or not.
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
out=${CARGO_TARGET_DIR:-$PWD/target}/core-alone
# Without LTO the rlib holds machine code; every function of the crate becomes a symbol of it.
CARGO_TARGET_DIR=$out CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 \
    "$CARGO" build --release -q -p gdrcore-core
libs=$(dirname "$("${RUSTC:-rustc}" --print target-libdir)")/lib
core=("$out/release/libgdrcore_core.rlib")
# Core's own dependencies, where it has any, belong to it.
while IFS= read -r rlib; do
    core+=("$rlib")
done < <(find "$out/release/deps" -name '*.rlib' ! -name 'libgdrcore_core-*')
cc -shared -nostdlib -o "$out/core_alone.so" -Wl,--whole-archive "${core[@]}" \
    -Wl,--no-whole-archive \
    "$libs"/libcore-*.rlib "$libs"/libcompiler_builtins-*.rlib -Wl,-z,noexecstack

needed=$(readelf -d "$out/core_alone.so" | grep NEEDED || true)
imports=$(nm -D --undefined-only "$out/core_alone.so" | awk '{ print $NF }' | sort -u)
foreign=$(grep -vE \
    '^(memcpy|memmove|memset|memcmp|bcmp|strlen|rust_eh_personality|_.*rust_begin_unwind.*)$' \
    <<<"$imports" || true)
allocator=$(nm "$out/core_alone.so" |
    grep -E '__rust_alloc|__rg_alloc|__rdl_alloc|[^a-z]malloc$|[^a-z]calloc$|[^a-z]mmap$' || true)
functions=$(nm --defined-only "$out/core_alone.so" | grep -c ' [tT] .*gdrcore_core' || true)
printf 'core alone: %s functions of its own, imports: %s\n' "$functions" \
    "$(tr '\n' ' ' <<<"$imports")"
if [ -n "$needed$foreign$allocator" ]; then
    printf 'core must not need: %s\n' "$needed" "$foreign" "$allocator" >&2
    exit 1
fi
if [ "$functions" -lt 3 ]; then
    echo "core alone holds next to no functions: the check looked at nothing" >&2
    exit 1
fi
