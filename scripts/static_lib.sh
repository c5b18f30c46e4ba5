#!/usr/bin/env bash
# static_lib.sh FOLDER OUT: makes OUT, the static library for programs, of FOLDER/libgdrcore.a and
# libgdrcore.so as cargo builds them. Cargo's archive exports every symbol of Rust's runtime, so two
# such libraries clash in one program. This script links everything that the functions of the C ABI
# need into one object, and keeps only these functions visible. Unneeded code is left out, and so
# are debug information and the compiler's intermediate code, which linkers of other compilers
# reject. CC, NM, OBJCOPY and AR name the tools.
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
    awk '$1 ~ /^gdrc_/ { sub("@.*", "", $1); print $1 }')
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
