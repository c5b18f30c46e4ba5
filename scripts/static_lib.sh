#!/usr/bin/env bash
# static_lib.sh FOLDER OUT: makes OUT, the static library that programs link, of FOLDER/libgdrcore.a
# and libgdrcore.so as cargo builds them. Cargo's archive shows every symbol of Rust's runtime to
# the program: two such libraries in one program clash. Here all is linked into one object first,
# from the functions of the C ABI on, and only these stay visible. What no function needs is left
# out, and so are debug information and the compiler's intermediate code, which the linkers of other
# compilers stumble over. CC, NM, OBJCOPY and AR name the tools.
set -eu
from=$1 to=$2
if [ "$to" -nt "$from/libgdrcore.a" ]; then
    exit 0
fi
mkdir -p "$(dirname "$to")"
work=$(mktemp -d "$to.XXXXXX")
trap 'rm -rf "$work"' EXIT
roots=()
while IFS= read -r name; do
    roots+=("-Wl,-u,$name")
done < <("${NM:-nm}" -D --defined-only --format=posix "$from/libgdrcore.so" |
    awk '$1 ~ /^gdrc_/ { print $1 }')
if [ "${#roots[@]}" -eq 0 ]; then
    echo "static_lib.sh: $from/libgdrcore.so exports nothing" >&2
    exit 1
fi
"${CC:-cc}" -r -nostdlib -Wl,--gc-sections "${roots[@]}" -o "$work/gdrcore.o" "$from/libgdrcore.a"
"${OBJCOPY:-objcopy}" --strip-debug --remove-section .llvmbc --remove-section .llvmcmd --wildcard \
    --keep-global-symbol='gdrc_*' \
    "$work/gdrcore.o"
"${AR:-ar}" rcsD "$work/libgdrcore.a" "$work/gdrcore.o"
mv -f "$work/libgdrcore.a" "$to"
