#!/bin/sh
# trees.sh OUT: builds all, and installs it into OUT/any, which may be moved, and OUT/system, for a
# package of Debian; both stripped, the debug information apart in OUT/debug.
set -eu
cd "$(dirname "$0")/.."
out=$1
make --no-print-directory all router-etcd
rm -rf "$out/any" "$out/system" "$out/debug"
make --no-print-directory install DESTDIR="$out/any" PREFIX=/usr/local
make --no-print-directory install DESTDIR="$out/system" PREFIX=/usr \
    LIBDIR="/usr/lib/$(uname -m)-linux-gnu" TOOLS_RPATH=
cd "$out"
# A wheel has no links. Programs that load libibverbs.so find a library there that consists of its
# need for libibverbs.so.1, so that there is one drop-in in the process, and not two.
rm -rf stubs
mkdir stubs
for link in any/usr/local/lib/gdrcore/*.so; do
    [ -L "$link" ] || continue
    # shellcheck disable=SC2016 # the loader knows $ORIGIN
    cc -shared -nostdlib -Wl,--build-id=none,--no-as-needed,-rpath,'$ORIGIN' \
        -Wl,-soname,"${link##*/}" -o "stubs/${link##*/}" -L"${link%/*}" \
        -l:"$(readlink "$link")"
    strip --remove-section=.comment "stubs/${link##*/}"
done
# Archives have no debug information as they are.
find any system -type f ! -name '*.a' | sort | while IFS= read -r file; do
    readelf -h "$file" >/dev/null 2>&1 || continue
    debug=debug/$file.debug
    mkdir -p "$(dirname "$debug")"
    objcopy --only-keep-debug "$file" "$debug"
    strip --strip-unneeded --remove-section=.comment "$file"
    objcopy --add-gnu-debuglink="$debug" "$file"
done
