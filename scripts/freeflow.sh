#!/usr/bin/env bash
# FreeFlow's router and its own client libraries, built from its sources as they are and run on the
# drop-in and on libmempool.so: two hosts made of namespaces, a router on each, clients on both.
#
#   FREEFLOW_SRC   its sources (github.com/microsoft/Freeflow); without it there is nothing to do
#   MEASURE        so many rounds of ibv_uc_pingpong with 4 KiB, for `make compare-router`, in place
#                  of all programs; its lines begin with "measured:"
#
# Everything is built into a folder below TMPDIR, which goes at the end. Needs root: FreeFlow locks
# its shared memory. docs/using/FREEFLOW.md says what was seen.
set -u
cd "$(dirname "$0")/.."
build=$PWD/build
skip() {
    echo "skipped: $1"
    exit 0
}
[ -n "${FREEFLOW_SRC:-}" ] || skip "FREEFLOW_SRC does not say where FreeFlow's sources are"
[ -e "$FREEFLOW_SRC/ffrouter/ffrouter.cpp" ] || { echo "no FreeFlow in $FREEFLOW_SRC" >&2; exit 2; }
src=$(cd "$FREEFLOW_SRC" && pwd)
[ "$(id -u)" = 0 ] || skip "FreeFlow's routers and clients lock memory, which takes root"
for tool in gcc g++ ip unshare nsenter ibv_devinfo; do
    command -v "$tool" >/dev/null || skip "no $tool"
done
make --no-print-directory dropin router >/dev/null || exit 1

work=$(mktemp -d "${TMPDIR:-/tmp}/gdrcore-freeflow.XXXXXX") || exit 1
started=()
clean_up() {
    [ ${#started[@]} = 0 ] || kill -9 "${started[@]}" 2>/dev/null
    wait 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

verbs=$src/libraries/libibverbs-1.2.1mlnx1
mlx4=$src/libraries/libmlx4-1.2.1mlnx1
cm=$src/libraries/librdmacm-1.1.0mlnx
cm_of_router=$src/libraries-router/librdmacm-1.1.0mlnx

# compile LINE...: for the C of its time, without optimising: a loop of FreeFlow's waits for memory
# that is not volatile.
compile() {
    gcc -std=gnu89 -g -w -fPIC -D_GNU_SOURCE -DHAVE_CONFIG_H -I"$work" -DSYSCONFDIR='"/etc"' \
        -DRDMADIR='"rdma"' -DIBV_CONFIG_DIR="\"$work/libibverbs.d\"" "$@"
}

# shared FILE MAP LINE...: a library with its version script.
shared() {
    local name=${1##*/}
    compile -shared -o "$1" -Wl,-soname,"$name" -Wl,--version-script="$2" "${@:3}" || return 1
    case $name in *.so.1) ln -sf "$name" "${1%.1}" ;; esac
}

of() { # of FOLDER NAME...: the sources of these names.
    local folder=$1
    shift
    printf "$folder/%s.c\n" "$@"
}

build_all() {
    mkdir -p "$work/router" "$work/client" "$work/libibverbs.d"
    echo 'driver mlx4' >"$work/libibverbs.d/mlx4.driver"
    printf '#define %s\n' 'HAVE_SYMVER_SUPPORT 1' 'NVALGRIND 1' 'NRESOLVE_NEIGH 1' \
        'STREAM_CLOEXEC "e"' 'HAVE_IBV_REGISTER_DRIVER 1' 'HAVE_IBV_READ_SYSFS_FILE 1' \
        'HAVE_IBV_DONTFORK_RANGE 1' 'HAVE_IBV_DOFORK_RANGE 1' 'SIZEOF_LONG 8' \
        'HAVE_FCNTL_H 1' 'HAVE_SYS_SOCKET_H 1' >"$work/config.h"
    local own=(-I"$cm/include" -I"$verbs/include") program file
    local pool=(-L"$build/mempool" -lmempool -lpthread -ldl -lrt)
    # The router, which finds the drop-in.
    # shellcheck disable=SC2046
    shared "$work/router/librdmacm.so.1" "$cm_of_router/src/librdmacm.map" \
        -I"$cm_of_router/include" -I"$verbs/include" \
        $(of "$cm_of_router/src" cma addrinfo acm rsocket indexer) \
        -L"$build/dropin" -libverbs -lpthread &&
        g++ -std=c++11 -O3 -fpermissive -w -I"$cm_of_router/include" -I"$verbs/include" \
            -o "$work/router/router" "$src"/ffrouter/*.cpp -L"$work/router" -lrdmacm \
            -L"$build/dropin" -libverbs -lpthread -lrt || return 1
    # The clients' libraries, which find libmempool.so.
    # shellcheck disable=SC2046
    shared "$work/client/libibverbs.so.1" "$verbs/src/libibverbs.map" "${own[@]}" \
        $(of "$verbs/src" cmd compat-1_0 device init marshall memory sysfs verbs enum_strs cmd_exp \
            freeflow) "${pool[@]}" &&
        shared "$work/client/librdmacm.so.1" "$cm/src/librdmacm.map" "${own[@]}" \
            $(of "$cm/src" cma addrinfo acm rsocket indexer freeflow) \
            -L"$work/client" -libverbs "${pool[@]}" &&
        shared "$work/client/libmlx4-rdmav2.so" "$mlx4/src/mlx4.map" -I"$mlx4/src" "${own[@]}" \
            $(of "$mlx4/src" buf cq dbrec mlx4 qp srq verbs verbs_exp) \
            -L"$work/client" -libverbs -lpthread || return 1
    for program in srq_pingpong uc_pingpong ud_pingpong; do
        compile -o "$work/client/ibv_$program" "${own[@]}" "$verbs/examples/$program.c" \
            "$verbs/examples/pingpong.c" -L"$work/client" -libverbs "${pool[@]}" || return 1
    done
    for program in rping ucmatose udaddy rdma_client rdma_server; do
        file=$cm/examples/${program/ucmatose/cmatose}.c
        case $program in ucmatose | udaddy) file="$file $cm/examples/common.c" ;; esac
        # shellcheck disable=SC2086
        compile -o "$work/client/$program" "${own[@]}" $file -L"$work/client" -lrdmacm -libverbs \
            "${pool[@]}" || return 1
    done
}

# In a host: the file system with /freeflow and shared memory of its own, then it sleeps.
# shellcheck disable=SC2016
new_root='mount -t tmpfs none "$1"
for at in /*; do
    if [ -L "$at" ]; then cp -P "$at" "$1$at"; elif [ -d "$at" ] && [ "$at" != /freeflow ]; then
        mkdir "$1$at"; mount --rbind "$at" "$1$at"; fi
done
mkdir "$1/freeflow"
mount -t tmpfs none "$1/dev/shm"
ip link set lo up
exec chroot "$1" sleep 3600'

# The addresses of hosts are those that FreeFlow's sources have.
addresses=(192.168.2.13 192.168.2.15)

# new_host N: namespaces; sets hosts[N] to its first process.
new_host() {
    mkdir -p "$work/root$1"
    unshare -nmi sh -c "$new_root" sh "$work/root$1" &
    hosts[$1]=$!
    started+=($!)
    until [ "$(cat "/proc/$!/comm" 2>/dev/null)" = sleep ]; do
        kill -0 $! 2>/dev/null || return 1
        sleep 0.1
    done
}

# on N COMMAND...: in a host; never returns. FreeFlow's clients and routers wait by spinning.
on() {
    local at=${hosts[$1]}
    shift
    exec nsenter -t "$at" -n -m -i -r -w nice -n -10 "$@"
}

# start_routers: FreeFlow's router ends by SIGPIPE where a client has gone without a word, so each
# program gets new ones.
start_routers() {
    local n
    routers=()
    for n in 0 1; do
        (on $n rm -f "/freeflow/router$n")
        on $n env HOST_IP="${addresses[$n]}" LD_LIBRARY_PATH="$work/router" \
            "$build/bin/gdrcore-run" --address "${addresses[$n]}" "$work/router/router" "router$n" \
            >"$work/router$n.log" 2>&1 &
        routers+=($!)
        started+=($!)
    done
    for n in 0 1; do
        until (on $n test -S "/freeflow/router$n"); do
            kill -0 "${routers[$n]}" 2>/dev/null || return 1
            sleep 0.1
        done
    done
}

# fake_sysfs N: an mlx4 for the clients of a host, with the drop-in's GUID and GID.
fake_sysfs() {
    local at=$work/sys$1/class port guid gid
    guid=$(on "$1" "$build/bin/gdrcore-run" --address "${addresses[$1]}" ibv_devinfo |
        sed -n 's/.*node_guid:\s*//p')
    gid=$(printf '0000:0000:0000:0000:0000:ffff:c0a8:02%02x' "${addresses[$1]##*.}")
    mkdir -p "$at/infiniband_verbs/uverbs0/device"
    echo 6 >"$at/infiniband_verbs/abi_version"
    echo mlx4_0 >"$at/infiniband_verbs/uverbs0/ibdev"
    echo 4 >"$at/infiniband_verbs/uverbs0/abi_version"
    echo 0x15b3 >"$at/infiniband_verbs/uverbs0/device/vendor"
    echo 0x1003 >"$at/infiniband_verbs/uverbs0/device/device"
    port=$at/infiniband/mlx4_0/ports/1
    mkdir -p "$port/gids" "$port/gid_attrs/types" "$port/pkeys"
    echo 1 >"$at/infiniband/mlx4_0/node_type"
    echo "$guid" >"$at/infiniband/mlx4_0/node_guid"
    echo 0xffff >"$port/pkeys/0"
    echo "$gid" | tee "$port/gids/0" >"$port/gids/1"
    echo 'IB/RoCE v1' >"$port/gid_attrs/types/0"
    echo 'RoCE v2' >"$port/gid_attrs/types/1"
}

# client N ID COMMAND...: a program of FreeFlow's on a host; never returns.
client() {
    local n=$1 id=$2 program=$3
    shift 3
    on "$n" env FFR_NAME="router$n" FFR_ID="$id" SYSFS_PATH="$work/sys$n" \
        LD_LIBRARY_PATH="$work/client:$build/mempool" timeout 100 \
        stdbuf -oL "$work/client/$program" "$@"
}

passed=0 failed=0
# both WHAT HOST HOST SERVER CLIENT: two sides, each on a host, whose exit codes count; with
# ENDS=any the caller judges them.
both() {
    local what=$1 server_on=$2 client_on=$3 server client_rc server_rc
    start_routers || { fail "$what: no router"; return 1; }
    # shellcheck disable=SC2086
    client "$server_on" 10 $4 >"$work/server.log" 2>&1 &
    server=$!
    started+=("$server")
    sleep 3
    # shellcheck disable=SC2086
    (client "$client_on" 11 $5) >"$work/client.log" 2>&1
    client_rc=$?
    [ "$client_rc" = 0 ] || sleep 1
    kill -0 "$server" 2>/dev/null && sleep 3
    kill "$server" 2>/dev/null
    wait "$server"
    server_rc=$?
    kill -9 "${routers[@]}" 2>/dev/null
    wait "${routers[@]}" 2>/dev/null
    ends="server $server_rc, client $client_rc"
    if [ "${ENDS:-0}" = any ] || [ "$ends" = "server 0, client 0" ]; then return 0; fi
    fail "$what: $ends"
    return 1
}

pass() {
    passed=$((passed + 1))
    echo "passed: $1"
}

fail() {
    failed=$((failed + 1))
    echo "failed: $1"
    tail -n 5 "$work"/{server,client,router0,router1}.log
}

echo "builds FreeFlow from $src"
build_all || { echo "it does not build"; exit 1; }
hosts=(0 0)
new_host 0 && new_host 1 || { echo "no hosts"; exit 1; }
ip link add ff0 mtu 9000 netns "${hosts[0]}" type veth peer name ff1 mtu 9000 netns \
    "${hosts[1]}" || exit 1
for n in 0 1; do
    (on $n ip addr add "${addresses[$n]}/24" dev "ff$n")
    (on $n ip link set "ff$n" up)
    fake_sysfs $n
done

# measure ROUNDS: the time of a round trip, between clients of one router and of two. Not of less
# than a page: FreeFlow's library maps its own over what lies beside the buffer.
measure() {
    local round where a b us
    for round in $(seq "$1"); do
        for where in "0 0 one" "0 1 two"; do
            read -r a b where <<<"$where"
            both "ibv_uc_pingpong" "$a" "$b" "ibv_uc_pingpong -g 0 -n 200" \
                "ibv_uc_pingpong -g 0 -n 200 ${addresses[0]}" || continue
            us=$(sed -n 's|.* = \([0-9.]*\) usec/iter|\1|p' "$work/client.log")
            echo "measured: $where $us"
            [ -n "$us" ] || cat "$work/client.log"
        done
    done
}

if [ -n "${MEASURE:-}" ]; then
    measure "$MEASURE"
    [ "$failed" = 0 ]
    exit
fi

# FreeFlow's table says that 10.47.0.4 is on the first host and 10.44.0.3 on the second.
for places in "0 0 on one host" "0 1 between two hosts"; do
    read -r a b where <<<"$places"
    # Not ibv_rc_pingpong: FreeFlow's writes completions of one layout into an array of another.
    for program in srq uc; do
        both "ibv_${program}_pingpong $where" "$a" "$b" "ibv_${program}_pingpong -g 0 -n 20" \
            "ibv_${program}_pingpong -g 0 -n 20 ${addresses[0]}" &&
            pass "ibv_${program}_pingpong $where"
    done
    both "ibv_ud_pingpong $where" "$a" "$b" "ibv_ud_pingpong -g 0 -n 20 -s 4056" \
        "ibv_ud_pingpong -g 0 -n 20 -s 4056 ${addresses[0]}" && pass "ibv_ud_pingpong $where"
    for program in ucmatose udaddy; do
        both "$program $where" "$a" "$b" $program "$program -s 10.47.0.4" &&
            pass "$program $where"
    done
    both "rdma_client $where" "$a" "$b" rdma_server "rdma_client -s 10.47.0.4" &&
        pass "rdma_client $where"
    # Its rping frees memory that the library has mapped, and ends by that: its pings count, whose
    # bytes it compares.
    if ENDS=any both "rping $where" "$a" "$b" "rping -s -a 10.47.0.4 -C 10 -v -V" \
        "rping -c -a 10.47.0.4 -C 10 -v -V"; then
        pings=$(grep -c 'ping data: rdma-ping' "$work/client.log")
        if [ "$pings" = 10 ] && ! grep -q 'data mismatch' "$work/client.log"; then
            pass "rping $where: 10 pings; then it frees what it has not allocated ($ends)"
        else
            fail "rping $where: $pings pings, $ends"
        fi
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
