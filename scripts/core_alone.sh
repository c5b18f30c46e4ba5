#!/usr/bin/env bash
# Links the whole of gdrcore-core, with Rust's libcore only, into a shared object and checks its
# imports: no library, and no symbols except those for copying and comparing bytes and the panic
# handler of a program. So no function of core, reached or not, uses an allocator, a system call or
# the C library.
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
out=${CARGO_TARGET_DIR:-$PWD/target}/core-alone
# Without LTO the rlib holds machine code, with every function of the crate as a symbol.
CARGO_TARGET_DIR=$out CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 \
    "$CARGO" build --release -q -p gdrcore-core
libs=$(dirname "$("${RUSTC:-rustc}" --print target-libdir)")/lib
core=("$out/release/libgdrcore_core.rlib")
# The dependencies of core, if any, count as core.
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
