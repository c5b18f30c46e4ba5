#!/bin/sh
# install_tools.sh LIBRARIES TO TOOL:NAME...: links C programs of c-examples against the library in
# LIBRARIES anew, with RPATH, and installs them as TO/NAME.
set -eu
cd "$(dirname "$0")/.."
libraries=$1
to=$2
shift 2
built=$(mktemp -d "$PWD/build/tools.XXXXXX")
trap 'rm -rf "$built"' EXIT
for tool; do
    "${MAKE:-make}" --no-print-directory -C c-examples OUT="$built" OBJ="$built/obj" \
        GDRCORE_LIBDIR="$libraries" RPATH="$RPATH" "$built/${tool%:*}"
    install -m 755 "$built/${tool%:*}" "$to/${tool#*:}"
done
