#!/bin/sh
# natively.sh BIN PROGRAM WORD...: runs, in place of a program of another architecture, that of its
# name in BIN.
set -eu
bin=$1 program=$2
shift 2
exec "$bin/${program##*/}" "$@"
