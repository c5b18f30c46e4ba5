#!/bin/sh
# linker.sh LINKER ARGUMENT...: links libgdrcore.so with gdrcore.map alone. rustc's own version
# script, which it calls `list`, is left out.
for argument; do
    shift
    case $argument in
    --version-script=*/list) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "$@"
