#!/bin/sh
# trees.sh OUT [aarch64 NATIVE]: builds all, and installs it into OUT/any, which may be moved, and
# OUT/system, for a package of Debian; both stripped, the debug information apart in OUT/debug. For
# aarch64 by Debian's cross compiler; the trees at NATIVE are a build of the same sources for this
# machine, which tells what is in the pages of the manual.
set -eu
cd "$(dirname "$0")/.."
out=$1
machine=${2:-$(uname -m)}
tools= run=
if [ $# = 3 ]; then
    tools=$machine-linux-gnu-
    run="dist/natively.sh $3/any/usr/local/bin"
    export CARGO_BUILD_TARGET="$machine-unknown-linux-gnu" CC="${tools}gcc" NM="${tools}nm" \
        AR="${tools}ar" OBJCOPY="${tools}objcopy"
    . scripts/cross.sh
fi
make --no-print-directory all router-etcd
rm -rf "$out/any" "$out/system" "$out/debug"
make --no-print-directory install DESTDIR="$out/any" PREFIX=/usr/local RUN="$run"
make --no-print-directory install DESTDIR="$out/system" PREFIX=/usr \
    LIBDIR="/usr/lib/$machine-linux-gnu" TOOLS_RPATH= RUN="$run"
cd "$out"
# A wheel has no links. Programs that load libibverbs.so find a library there that consists of its
# need for libibverbs.so.1, so that there is one drop-in in the process, and not two.
rm -rf stubs
mkdir stubs
for link in any/usr/local/lib/gdrcore/*.so; do
    [ -L "$link" ] || continue
    # shellcheck disable=SC2016 # the loader knows $ORIGIN
    "${CC:-cc}" -shared -nostdlib -Wl,--build-id=none,--no-as-needed,-rpath,'$ORIGIN' \
        -Wl,-z,noexecstack,-soname,"${link##*/}" -o "stubs/${link##*/}" -L"${link%/*}" \
        -l:"$(readlink "$link")"
    "${tools}strip" --remove-section=.comment "stubs/${link##*/}"
done
# Archives have no debug information as they are.
find any system -type f ! -name '*.a' | sort | while IFS= read -r file; do
    readelf -h "$file" >/dev/null 2>&1 || continue
    debug=debug/$file.debug
    mkdir -p "$(dirname "$debug")"
    "${tools}objcopy" --only-keep-debug "$file" "$debug"
    "${tools}strip" --strip-unneeded --remove-section=.comment "$file"
    "${tools}objcopy" --add-gnu-debuglink="$debug" "$file"
done
