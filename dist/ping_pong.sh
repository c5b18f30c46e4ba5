#!/bin/sh
# ping_pong.sh: two ping-pongs whose bytes are checked, between two devices of this machine. Fails
# if one does. Needs gdrcore-run and Debian's ibverbs-utils on the path.
set -eu
told=$(mktemp)
trap 'rm -f "$told"' EXIT
for port in 18515 18516; do
    timeout 60 gdrcore-run --address 127.0.0.2 ibv_rc_pingpong -g 0 -c -p "$port" >"$told" 2>&1 &
    server=$!
    # Until the server listens, which it does unless it has ended.
    until timeout 30 gdrcore-run --address 127.0.0.3 \
        ibv_rc_pingpong -g 0 -c -p "$port" 127.0.0.1; do
        if ! kill -0 "$server" 2>/dev/null; then
            cat "$told"
            exit 1
        fi
        sleep 0.1
    done
    ended=0
    wait "$server" || ended=$?
    cat "$told"
    # Wrong bytes are said, and no failure of the program's.
    if [ "$ended" != 0 ] || grep -q 'invalid data' "$told"; then
        exit 1
    fi
done
