#!/usr/bin/env bash
# A server and a client as servers of GPU memory are built on DC, for long: tests/c/dc_server.c,
# compiled with Debian's headers and linked to Debian's libmlx5, under gdrcore-run --mlx5. The
# server writes into the client's memory; every eighth request names a wrong key first and is
# refused, every fourth is read back. Every byte is checked.
#
#   scripts/dc_server.sh [REQUESTS [BYTES [PATH]]]      10000, 10000000, udp (or shm, auto)
#
# The last line says how much was moved, or what failed. `make test` runs a short one of it.
set -eu
cd "$(dirname "$0")/.."
requests=${1:-10000} bytes=${2:-10000000} path=${3:-udp}
near=127.0.177.1 far=127.0.177.2 port=18577
make --no-print-directory dropin >/dev/null
dir=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$dir"' EXIT
cc -std=gnu11 -O2 -Wall -Wextra -D_GNU_SOURCE -o "$dir/dc_server" tests/c/dc_server.c \
    -lrdmacm -libverbs -lmlx5
run() { build/bin/gdrcore-run --mlx5 --stats --path "$path" --address "$@"; }
start=$SECONDS
run "$near" "$dir/dc_server" "$near" "$port" >"$dir/server" 2>&1 &
server=$!
for _ in {1..200}; do
    grep -q ":$(printf '%04X' "$port") .* 0A " /proc/net/tcp && break
    sleep 0.05
done
run "$far" "$dir/dc_server" "$far" "$port" "$requests" "$bytes" >"$dir/client" 2>&1 &&
    wait "$server" || {
    echo "failed after $((SECONDS - start)) s; server:"
    cat "$dir/server"
    echo "client:"
    cat "$dir/client"
    exit 1
}
server=
echo "server: $(grep '^ok' "$dir/server"); $(grep -o 'dc_opened *[0-9]*' "$dir/server")"
echo "client: $(grep '^ok' "$dir/client") over $path in $((SECONDS - start)) s"
