#!/usr/bin/env bash
# Usage: programs.sh [PROGRAM]...
# Runs programs that are not in `make test` on the drop-in. Fetches them from PyPI or Debian into
# build/programs, without installing anything, runs them in namespaces of their own where the system
# allows those, checks by the device's counters that they used RDMA, and writes each result into its
# row of docs/using/DROPIN.md. Without a name: all of them.
#   nixl mooncake iser mpi4py mpich openshmem qperf fio dapl gloo qemu ceph valkey nccl uccl
# The last three are not fetched: VALKEY, NCCL and UCCL name their source trees. valkey must be
# built, with its RDMA module and tests/rdma; of the others NCCL's net_ib and UCCL's engine are
# built here, with CUDA's headers from PyPI. PYTHON is the interpreter for wheels.
set -u
cd "$(dirname "$0")/.."
all='nixl mooncake iser mpi4py mpich openshmem qperf fio dapl gloo qemu ceph valkey nccl uccl'
python=${PYTHON:-python3}
bin=${BIN:-$PWD/build/bin}
work=$PWD/build/programs
page=docs/using/DROPIN.md
libs=usr/lib/$(uname -m)-linux-gnu
[ -x "$bin/gdrcore-run" ] || { printf 'no %s/gdrcore-run: make dropin\n' "$bin" >&2; exit 2; }

# on NUMBER OUTPUT PROGRAM ARGUMENT...: runs a program on address NUMBER of the test, with counters.
# NUMBER `all`: with a device for each address of the machine. In the background the program takes
# the place of the subshell, so that a signal to the one ends the other, which then prints its
# counters.
on() {
    local address="--address 127.0.$1.1" output=$2 instead=
    [ "$1" = all ] && address=
    shift 2
    [ "$BASH_SUBSHELL" = 0 ] || instead=exec
    # shellcheck disable=SC2086
    $instead timeout ${once:-} -k 5 "${limit:-120}" "$bin/gdrcore-run" ${options:-} --stats \
        $address "$@" >"$output" 2>&1
}

# The sum of a counter in files of output.
counted() {
    local name=$1
    shift
    cat "$@" 2>/dev/null | awk -v name="$name" \
        '$1 == "gdrcore:" && $2 == name { n += $3 } END { print n + 0 }'
}

# Describes a program and its checked data, for its row: about VERSION WHAT-IT-DOES DATA-CHECKED
about() {
    printf '%s | %s | %s' "$1" "$2" "$3" >"$work/$program.about"
}

# verdict GOOD 'COUNTER...' FILE...: whether it succeeded, and used the device: each counter moved.
verdict() {
    local good=$1 counters=$2 counter n said=
    shift 2
    for counter in $counters; do
        n=$(counted "$counter" "$@")
        [ "$n" -gt 0 ] || good=0
        said="$said${said:+, }$counter $n"
    done
    if [ "$good" = 1 ]; then
        printf 'passed: %s: %s\n' "$program" "$said"
    else
        printf 'FAILED: %s: %s; see %s\n' "$program" "$said" "$*"
        return 1
    fi
}

skip() {
    printf 'skipped: %s: %s\n' "$program" "$1"
    return 77
}

# debian PACKAGE...: unpacks packages below $work/PROGRAM/root.
debian() {
    local root=$work/$program/root deb=$work/$program/deb
    [ -e "$work/$program/.fetched" ] && return 0
    mkdir -p "$deb" "$root"
    (cd "$deb" && apt-get download -q "$@" && for d in *.deb; do dpkg -x "$d" "$root" || exit 1
        done) >"$work/$program.fetch" 2>&1 ||
        { skip "$(tail -n 1 "$work/$program.fetch")"; return; }
    touch "$work/$program/.fetched"
}

# The version of a package that was fetched.
version() {
    basename "$work/$program"/deb/"$1"_*.deb | awk -F_ '{ sub("%3a", ":", $2); print $1 " " $2 }'
}

# pypi PACKAGE ARGUMENT...: a virtual environment with the packages that pip installs by these
# arguments.
pypi() {
    local venv=$work/$program/venv
    [ -e "$work/$program/.fetched" ] && return 0
    shift
    mkdir -p "$work/$program"
    { "$python" -m venv "$venv" && "$venv/bin/pip" install -q "$@"
        } >"$work/$program.fetch" 2>&1 ||
        { skip "$(tail -n 1 "$work/$program.fetch")"; return; }
    touch "$work/$program/.fetched"
}

pip_version() {
    "$work/$program/venv/bin/pip" list --format=freeze 2>/dev/null | grep -m 1 -i "^$1==" |
        sed 's/==/ /'
}

have() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || { skip "no $tool"; return; }
    done
}

# Waits until a TCP port has a listener, or a process has ended: until_listened PORT PROCESS
until_listened() {
    local port
    port=$(printf ':%04X 0*:0000 0A' "$1")
    while kill -0 "$2" 2>/dev/null && ! cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        grep -q "$port"; do sleep 0.1; done
}

# Waits until a file contains a text, or a process has ended.
until_said() {
    while kill -0 "$3" 2>/dev/null && ! grep -q "$1" "$2" 2>/dev/null; do sleep 0.1; done
}

# Each program has NAME_fetch, which uses the network, and NAME_run, in namespaces.

wheel_run() {
    local other one
    export UCX_TLS=rc_v,self UCX_NET_DEVICES=gdrc0:1 GLOG_minloglevel=2
    on 71 "$work/$program.target" "$work/$program/venv/bin/python" -B tests/python/wheels.py \
        "$program" target 127.0.71.1 20071 &
    other=$!
    on 72 "$work/$program.initiator" "$work/$program/venv/bin/python" -B tests/python/wheels.py \
        "$program" initiator 127.0.72.1 20071
    one=$?
    wait "$other"
    other=$?
    about "$(pip_version "$1")" 'WRITEs and READs between two processes' 'every byte'
    verdict "$((one == 0 && other == 0))" 'rdma_writes rdma_reads' "$work/$program.target" \
        "$work/$program.initiator"
}

# Without the wheel's dependencies, which include CUDA.
nixl_fetch() { pypi nixl --no-deps nixl nixl-cu12 numpy; }
nixl_run() { wheel_run nixl; }
mooncake_fetch() { pypi mooncake --no-deps mooncake-transfer-engine-non-cuda; }
mooncake_run() { wheel_run mooncake-transfer-engine-non-cuda; }

iser_fetch() {
    local release
    # qemu-img loads only modules of its own release.
    release=$(apt-cache policy qemu-block-extra 2>/dev/null | awk '$1 == "Candidate:" { print $2 }')
    debian tgt libiscsi7 "qemu-block-extra=$release" "qemu-utils=$release"
}

# tgt's iSER target and qemu-img with libiscsi at the other end: an image is written and read back.
iser_run() {
    local root=$work/iser/root name disk far good=0 server
    export QEMU_MODULE_DIR=$root/$libs/qemu LD_LIBRARY_PATH=$root/$libs \
        TGT_IPC_SOCKET=$work/iser/socket
    if ! "$root/usr/bin/qemu-img" --version >"$work/iser.version" 2>&1 ||
        ! ldd "$root/usr/sbin/tgtd" >/dev/null; then
        skip "$(tail -n 1 "$work/iser.version")"
        return
    fi
    name=iqn.2026-01.local:disk disk=$work/iser/disk
    head -c 16M /dev/zero >"$disk"
    head -c 16M /dev/urandom >"$work/iser/image"
    rm -f "$work/iser/back" "$TGT_IPC_SOCKET"*
    on 73 "$work/iser.target" "$root/usr/sbin/tgtd" -f --iscsi portal=127.0.73.1:3260 &
    server=$!
    admin() { "$root/usr/sbin/tgtadm" --lld iser "$@"; }
    for _ in $(seq 100); do
        admin --op show --mode target >/dev/null 2>&1 && break
        sleep 0.1
    done
    # Debian's tgt wants the initiator's name beside its address: without it every login ends in
    # "target not found".
    admin --op new --mode target --tid 1 -T "$name" &&
        admin --op new --mode logicalunit --tid 1 --lun 1 -b "$disk" &&
        admin --op bind --mode target --tid 1 -I ALL &&
        admin --op bind --mode target --tid 1 -Q iqn.2008-11.org.linux-kvm &&
        # libiscsi's iSER takes requests of less than 512 KiB.
        far=driver=raw,file.driver=blkdebug,file.max-transfer=262144 &&
        far+=,file.image.driver=iscsi,file.image.transport=iser &&
        far=$far,file.image.portal=127.0.73.1:3260,file.image.target=$name,file.image.lun=1 &&
        on 74 "$work/iser.there" "$root/usr/bin/qemu-img" convert -n -f raw --target-image-opts \
        "$work/iser/image" "$far" &&
        cmp "$work/iser/image" "$disk" &&
        on 74 "$work/iser.back" "$root/usr/bin/qemu-img" convert --image-opts -O raw "$far" \
        "$work/iser/back" &&
        cmp "$work/iser/image" "$work/iser/back" && good=1
    # The daemon ends when it has no target left; it keeps one while a connection is closing.
    for _ in $(seq 100); do
        admin --op delete --mode target --tid 1 >/dev/null 2>&1 && break
        sleep 0.1
    done
    admin --op delete --mode system
    wait "$server"
    about "$(version tgt), $(version qemu-utils)" 'a disk image there and back over iSER' \
        'every byte'
    verdict "$good" 'rdma_writes rdma_reads' "$work/iser.target" "$work/iser.there" \
        "$work/iser.back"
}

# Only through UCX, and from UCX only through the device.
through_ucx() {
    export UCX_TLS=rc_v,self UCX_NET_DEVICES=gdrc0:1 OMPI_ALLOW_RUN_AS_ROOT=1 \
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mpi='--oversubscribe --mca pml ucx --mca osc ucx --mca spml ucx --mca btl self'
}

mpi4py_fetch() {
    have mpicc.openmpi mpirun.openmpi || return
    MPICC=$(command -v mpicc.openmpi) pypi mpi4py numpy --no-binary mpi4py mpi4py || return
    [ -e "$work/mpi4py/test" ] && return 0
    (cd "$work/mpi4py" && venv/bin/pip download -q --no-deps --no-build-isolation --no-binary \
        mpi4py \
        "mpi4py==$(pip_version mpi4py | cut -d ' ' -f 2)" && tar xzf mpi4py-*.tar.gz &&
        mv mpi4py-*/test test) >"$work/mpi4py.fetch" 2>&1 ||
        skip "$(tail -n 1 "$work/mpi4py.fetch")"
}

mpi4py_run() {
    local good=0 side n
    through_ucx
    # Messages and collectives, of buffers and of objects. For one-sided calls see the page.
    set -- "$work/mpi4py/venv/bin/python" "$work/mpi4py/test/main.py" -v -i p2p -i cco -i msgspec
    side() { printf '%s %s ' -np 1 "$bin/gdrcore-run" --stats --address "127.0.$1.1"; }
    # shellcheck disable=SC2046,SC2086
    timeout -k 5 900 mpirun.openmpi $mpi --mca mpi_yield_when_idle 1 $(side 75) "$@" : $(side 76) \
        "$@" >"$work/mpi4py.out" 2>&1 && good=1
    n=$(awk '/^Ran [0-9]+ tests/ { print $2; exit }' "$work/mpi4py.out")
    about "$(pip_version mpi4py), Open MPI $(mpirun.openmpi --version |
        awk 'NR == 1 { print $NF }')" \
        "its own tests of messages and collectives: ${n:-?}, two ranks" 'yes'
    verdict "$good" rdma_sends "$work/mpi4py.out"
}

mpich_fetch() { have cc && debian mpich libmpich12 libmpich-dev libslurm38; }

mpich_run() {
    local root=$work/mpich/root good=0
    export LD_LIBRARY_PATH=$root/$libs MPIR_CVAR_NOLOCAL=1
    through_ucx
    cc -O1 -I "$root/${libs/lib/include}/mpich" -o "$work/mpich/program" tests/c/mpi.c \
        -L"$root/$libs" -lmpich -Wl,-rpath-link,"$root/$libs" \
        >"$work/mpich.out" 2>&1 || {
            skip "$(grep -m 1 'error\|cannot' "$work/mpich.out")"
            return
        }
    side() { printf '%s %s ' -n 2 "$bin/gdrcore-run" --stats --address "127.0.$1.1"; }
    # shellcheck disable=SC2046
    timeout -k 5 120 "$root/usr/bin/mpiexec.hydra" -launcher fork $(side 92) "$work/mpich/program" \
        : $(side 93) "$work/mpich/program" \
        >"$work/mpich.out" 2>&1 && good=1
    about "$(version mpich)" 'over UCX: ring, one-sided, collectives; four ranks on two addresses' \
        'every byte (`tests/c/mpi.c`)'
    verdict "$good" 'rdma_sends rdma_writes rdma_reads' "$work/mpich.out"
}

openshmem_fetch() { have oshcc oshrun; }

openshmem_run() {
    local good=0
    through_ucx
    side() { printf '%s %s ' -np 2 "$bin/gdrcore-run" --stats --address "127.0.$1.1"; }
    # shellcheck disable=SC2046,SC2086
    oshcc -std=gnu11 -O1 -Wall -Wextra -Werror -o "$work/shmem" tests/c/shmem.c \
        >"$work/openshmem.out" 2>&1 &&
        timeout -k 5 120 oshrun $mpi --mca sshmem mmap $(side 77) "$work/shmem" : $(side 78) \
        "$work/shmem" >"$work/openshmem.out" 2>&1 &&
        grep -q 'every byte was right' "$work/openshmem.out" && good=1
    about "Open MPI $(oshmem_info |
        awk '/Open SHMEM:/ { print $3; exit }')" \
        'puts, gets, atomics, a lock, collectives; four PEs on two addresses' \
        'every byte (`tests/c/shmem.c`)'
    verdict "$good" 'rdma_writes rdma_reads' "$work/openshmem.out"
}

qperf_fetch() { debian qperf; }

# It uses LIDs only.
qperf_run() {
    local root=$work/qperf/root options=--lid server good=0
    on 79 "$work/qperf.server" "$root/usr/bin/qperf" &
    server=$!
    until_listened 19765 "$server"
    on 80 "$work/qperf.client" "$root/usr/bin/qperf" -t 1 127.0.79.1 rc_bw rc_bi_bw rc_lat uc_bw \
        uc_lat ud_bw ud_lat rc_rdma_write_bw \
        rc_rdma_write_lat rc_rdma_write_poll_lat rc_rdma_read_bw rc_rdma_read_lat \
        rc_compare_swap_mr rc_fetch_add_mr \
        ver_rc_compare_swap ver_rc_fetch_add quit && wait "$server" && good=1
    about "$(version qperf)" 'RC, UC, UD, WRITE, READ, atomics; `--lid`' 'atomics'
    verdict "$good" 'rdma_sends rdma_writes rdma_reads rdma_atomics' "$work/qperf.server" \
        "$work/qperf.client"
}

fio_fetch() { debian fio; }

fio_run() {
    local root=$work/fio/root verb server good=1 common outputs=
    export LD_LIBRARY_PATH=$root/$libs
    ldd "$root/usr/bin/fio" | grep -q 'not found' &&
        { skip 'fio needs libraries that are not here'; return; }
    # fio's server does the reads, whatever the verb.
    common='--thread --ioengine=rdma --hostname=127.0.81.1 --port=7174 --size=64m --bs=64k'
    common="$common --iodepth=8 --iodepth_batch_complete=8"
    for verb in write read; do
        # shellcheck disable=SC2086
        on 81 "$work/fio.server.$verb" "$root/usr/bin/fio" --name=server --rw=read $common &
        server=$!
        until_said 'waiting for connection' "$work/fio.server.$verb" "$server"
        # shellcheck disable=SC2086
        on 82 "$work/fio.client.$verb" "$root/usr/bin/fio" --name=client --rw=write $common \
            --verb=$verb && wait "$server" || good=0
        outputs="$outputs $work/fio.server.$verb $work/fio.client.$verb"
    done
    about "$(version fio)" 'WRITE and READ, 64 MiB each' 'no'
    # shellcheck disable=SC2086
    verdict "$good" 'rdma_writes rdma_reads' $outputs
}

dapl_fetch() { debian dapl2-utils libdapl2; }

dapl_run() {
    local root=$work/dapl/root n server good=1 outputs=
    export LD_LIBRARY_PATH=$root/$libs
    # Its provider over librdmacm uses an address as the device's name.
    for n in 83 84; do
        printf 'gdrc u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "127.0.%s.1 0" ""\n' $n \
            >"$work/dapl/$n.conf"
    done
    DAT_OVERRIDE=$work/dapl/83.conf on 83 "$work/dapl.dtest.server" "$root/usr/bin/dtest" -P gdrc \
        -b 65536 -s &
    server=$!
    until_listened 15828 "$server"
    DAT_OVERRIDE=$work/dapl/84.conf on 84 "$work/dapl.dtest.client" "$root/usr/bin/dtest" -P gdrc \
        -b 65536 -h 127.0.83.1 &&
        wait "$server" && grep -q PASSED "$work/dapl.dtest.server" &&
        grep -q PASSED "$work/dapl.dtest.client" || good=0
    DAT_OVERRIDE=$work/dapl/83.conf on 83 "$work/dapl.dapltest.server" "$root/usr/bin/dapltest" \
        -T S -D gdrc &
    server=$!
    until_said 'Service Point Ready' "$work/dapl.dapltest.server" "$server"
    for n in 1 2; do
        DAT_OVERRIDE=$work/dapl/84.conf on 84 "$work/dapl.dapltest.client.$n" \
            "$root/usr/bin/dapltest" -T T -s 127.0.83.1 -D gdrc \
            -i 200 -t $n -w $n -V client SR 4096 2 server SR 4096 2 client RW 65536 1 server RR \
            65536 1 &&
            grep -q 'Total RDMA Read' "$work/dapl.dapltest.client.$n" &&
            ! grep -qi 'mismatch\|error' "$work/dapl.dapltest.client.$n" || good=0
        outputs="$outputs $work/dapl.dapltest.client.$n"
    done
    DAT_OVERRIDE=$work/dapl/84.conf on 84 "$work/dapl.quit" "$root/usr/bin/dapltest" -T Q \
        -s 127.0.83.1 -D gdrc && wait "$server" || good=0
    about "$(version dapl2-utils)" \
        'dtest, dapltest (one and two threads) over the provider that uses librdmacm' \
        'every byte (`-V`)'
    # shellcheck disable=SC2086
    verdict "$good" 'rdma_sends rdma_writes rdma_reads' "$work/dapl.dtest.server" \
        "$work/dapl.dtest.client" "$work/dapl.dapltest.server" $outputs
}

gloo_fetch() { have c++ && debian libgloo-dev libgloo0 libhiredis0.14; }

gloo_run() {
    local root=$work/gloo/root rank good=1 sides= outputs=
    export LD_LIBRARY_PATH=$root/usr/lib:$root/$libs
    rm -rf "$work/gloo/meet"
    mkdir "$work/gloo/meet"
    c++ -std=c++17 -O1 -isystem "$root/usr/include" -o "$work/gloo/program" tests/c/gloo.cpp \
        -L"$root/usr/lib" -lgloo \
        -Wl,-rpath-link,"$root/$libs" -lpthread >"$work/gloo.build" 2>&1 ||
        { skip "$(grep -m 1 error "$work/gloo.build")"; return; }
    for rank in 0 1 2; do
        on $((85 + rank)) "$work/gloo.$rank" "$work/gloo/program" "$work/gloo/meet" $rank 3 &
        sides="$sides $!" outputs="$outputs $work/gloo.$rank"
    done
    for rank in $sides; do
        wait "$rank" || good=0
    done
    about "$(version libgloo0)" \
        'its ibverbs transport: allreduce (three algorithms), broadcast, barrier; three ranks' \
        'every element (`tests/c/gloo.cpp`)'
    # shellcheck disable=SC2086
    verdict "$good" rdma_writes $outputs
}

qemu_fetch() {
    have python3 && debian qemu-system-x86 qemu-system-common qemu-system-data seabios \
        libcapstone4 libfdt1 libslirp0 libvdeplug2
}

# monitor SOCKET COMMAND: sends a command to a machine's monitor; prints the answer.
monitor() {
    python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
def answer():
    text = b""
    while not text.endswith(b"(qemu) "):
        more = s.recv(65536)
        if not more:
            break
        text += more
    return text.decode(errors="replace")
answer()
s.sendall(sys.argv[2].encode() + b"\n")
print(answer())' "$@"
}

# Migrates a machine with random bytes in its memory to another process.
qemu_run() {
    local root=$work/qemu/root here=$work/qemu/here.monitor there=$work/qemu/there.monitor good=0 \
        one other machine state=
    export LD_LIBRARY_PATH=$root/$libs
    ldd "$root/usr/bin/qemu-system-x86_64" | grep -q 'not found' &&
        { skip 'qemu needs libraries that are not here'; return; }
    machine="$root/usr/bin/qemu-system-x86_64 -L $root/usr/share/qemu -L $root/usr/share/seabios"
    machine="$machine -machine pc,accel=tcg -m 64 -nodefaults"
    machine="$machine -display none -vga none -nic none -S"
    head -c 32M /dev/urandom >"$work/qemu/image"
    rm -f "$here" "$there" "$work/qemu/memory".*
    # shellcheck disable=SC2086
    on 90 "$work/qemu.here" $machine -device \
        "loader,file=$work/qemu/image,addr=0x1000000,force-raw=on" -monitor \
        "unix:$here,server,nowait" &
    one=$!
    # shellcheck disable=SC2086
    on 91 "$work/qemu.there" $machine -monitor "unix:$there,server,nowait" -incoming \
        rdma:127.0.91.1:4444 &
    other=$!
    while { [ ! -S "$here" ] || [ ! -S "$there" ]; } && kill -0 $one 2>/dev/null &&
        kill -0 $other 2>/dev/null; do sleep 0.1; done
    monitor "$here" 'migrate -d rdma:127.0.91.1:4444' >/dev/null
    while kill -0 $one 2>/dev/null; do
        state=$(monitor "$here" 'info migrate' |
            grep -o 'Migration status: \(completed\|failed\)') && break
        sleep 0.2
    done
    monitor "$here" "pmemsave 0 0x4000000 \"$work/qemu/memory.here\"" >/dev/null
    monitor "$there" "pmemsave 0 0x4000000 \"$work/qemu/memory.there\"" >/dev/null
    [ "$state" = 'Migration status: completed' ] &&
        cmp "$work/qemu/memory.here" "$work/qemu/memory.there" &&
        cmp -n 33554432 "$work/qemu/memory.there" "$work/qemu/image" 16777216 0 && good=1
    monitor "$here" quit >/dev/null
    monitor "$there" quit >/dev/null
    wait $one
    wait $other
    about "$(version qemu-system-x86)" 'live migration of a machine, 64 MiB, to another process' \
        'every byte of its memory'
    verdict "$good" 'rdma_sends rdma_writes' "$work/qemu.here" "$work/qemu.there"
}

ceph_fetch() {
    have python3 && debian ceph-mon ceph-osd ceph-base ceph-common librados2 libradosstriper1 \
        libboost-thread1.74.0 libfmt9 libleveldb1d \
        libfuse2 libpmem1 libndctl6 libdaxctl1 python3-rados python3-ceph-argparse \
        python3-prettytable python3-wcwidth
}

# A monitor, an OSD with its objects in memory, and clients, with RDMA for all messages: ceph_way
# NAME LINE-OF-ITS-CONFIGURATION...
ceph_way() {
    local root=$work/ceph/root where=$work/ceph/cluster name=$work/ceph.$1 mon osd good=1
    shift
    rm -rf "$where"
    mkdir -p "$where/mon" "$where/osd"
    # A receive queue longer than the number of buffers ends it at once. An OSD that ends fast
    # prints no counters.
    cat >"$where/conf" <<END
[global]
fsid = 00000000-0000-4000-8000-000000000001
mon host = [v2:127.0.94.1:3300]
mon data = $where/mon
mon cluster log file = $where/cluster.log
mon allow pool size one = true
osd data = $where/osd
osd objectstore = memstore
osd fast shutdown = false
osd pool default size = 1
osd crush chooseleaf type = 0
public addr = 127.0.95.1
cluster addr = 127.0.95.1
auth cluster required = none
auth service required = none
auth client required = none
run dir = $where
admin socket = $where/\$name.\$pid.asok
log file = $where/\$name.log
crash dir = $where
plugin dir = $root/$libs/ceph
erasure code dir = $root/$libs/ceph/erasure-code
osd class dir = $root/$libs/rados-classes
ms type = async+rdma
ms async rdma device name = gdrc0
ms async rdma receive queue len = 256
ms async rdma receive buffers = 512
ms async rdma send buffers = 256
$(printf '%s\n' "$@")
END
    set -- -c "$where/conf"
    "$root/usr/bin/monmaptool" --create --fsid 00000000-0000-4000-8000-000000000001 --addv a \
        '[v2:127.0.94.1:3300]' "$where/map" >"$name.map" 2>&1
    on 94 "$name.mkfs" "$root/usr/bin/ceph-mon" "$@" --mkfs -i a --monmap "$where/map"
    # A second SIGTERM ends it without counters, and timeout sends two unless it is in the
    # foreground.
    limit=300 once=--foreground on 94 "$name.mon" "$root/usr/bin/ceph-mon" "$@" -f -i a &
    mon=$!
    # The first client retries until it gets an answer.
    on 96 "$name.create" python3 -B "$root/usr/bin/ceph" "$@" osd create
    on 95 "$name.mkfs" "$root/usr/bin/ceph-osd" "$@" --mkfs -i 0
    limit=300 once=--foreground on 95 "$name.osd" "$root/usr/bin/ceph-osd" "$@" -f -i 0 &
    osd=$!
    head -c 16M /dev/urandom >"$where/image"
    on 96 "$name.pool" python3 -B "$root/usr/bin/ceph" "$@" osd pool create pool 8 &&
        on 96 "$name.put" "$root/usr/bin/rados" "$@" -p pool put image "$where/image" &&
        on 96 "$name.get" "$root/usr/bin/rados" "$@" -p pool get image "$where/back" &&
        cmp "$where/image" "$where/back" &&
        on 96 "$name.write" "$root/usr/bin/rados" "$@" -p pool bench 30 write -b 1M -t 8 \
        --max-objects 64 --no-cleanup &&
        on 96 "$name.read" "$root/usr/bin/rados" "$@" -p pool bench 30 seq -t 8 || good=0
    # The OSD reports its end to the monitor.
    kill "$osd"
    wait "$osd" || good=0
    kill "$mon"
    wait "$mon" || good=0
    outputs="$outputs $name.mon $name.osd $name.put $name.get $name.write $name.read"
    return $((1 - good))
}

ceph_run() {
    local root=$work/ceph/root good=1 outputs=
    export LD_LIBRARY_PATH=$root/$libs:$root/$libs/ceph:$root/${libs#usr/} \
        PYTHONPATH=$root/usr/lib/python3/dist-packages
    if ldd "$root"/usr/bin/{ceph-osd,ceph-mon,rados} | grep -q 'not found' ||
        ! python3 -B -c 'import rados, ceph_daemon' 2>/dev/null; then
        skip 'ceph needs libraries that are not here'
        return
    fi
    ceph_way addresses || good=0
    ceph_way rdma_cm 'ms async rdma cm = true' 'ms async rdma type = iwarp' || good=0
    local what='its messenger: a monitor, an OSD, `rados` put, get, bench'
    what+='; with addresses told over TCP, and over librdmacm'
    about "$(version ceph-osd)" \
        "$what" 'every byte'
    # shellcheck disable=SC2086
    verdict "$good" 'rdma_sends rdma_recvs cm_sent' $outputs
}

valkey_fetch() {
    [ -n "${VALKEY:-}" ] || { skip 'VALKEY names no source tree'; return; }
    [ -x "$VALKEY/src/valkey-server" ] && [ -e "$VALKEY/src/valkey-rdma.so" ] &&
        [ -x "$VALKEY/tests/rdma/rdma-test" ] ||
        skip "$VALKEY is not built with its RDMA module and tests/rdma"
}

# Its own test: four clients set and get keys with values of 1 KiB.
valkey_run() {
    local server good=0
    mkdir -p "$work/valkey"
    on 88 "$work/valkey.server" "$VALKEY/src/valkey-server" --port 0 --protected-mode no --save '' \
        --appendonly no --dir "$work/valkey" \
        --loadmodule "$VALKEY/src/valkey-rdma.so" port=6379 bind=127.0.88.1 &
    server=$!
    until_said 'Ready to accept' "$work/valkey.server" "$server"
    on 89 "$work/valkey.client" "$VALKEY/tests/rdma/rdma-test" --thread 4 -h 127.0.88.1 &&
        grep -q '^Valkey Over RDMA test \[OK\]' "$work/valkey.client" && good=1
    kill "$server"
    wait "$server"
    local what='its RDMA module and test: PING, SET, GET by four clients'
    what+='; server with `--protected-mode no`'
    about "valkey, source of ${VALKEY_DATE:-an unknown date}" \
        "$what" 'every value'
    verdict "$good" 'rdma_sends rdma_writes' "$work/valkey.server" "$work/valkey.client"
}

# CUDA's headers.
cuda_fetch() {
    have c++ && pypi "$program" --no-deps nvidia-cuda-runtime-cu12 nvidia-cuda-nvcc-cu12 \
        nvidia-cuda-cccl-cu12
}

# cuda_flags FOLDER...: C++ flags for headers in these folders and for CUDA's.
cuda_flags() {
    local folder
    flags=(-std=c++17 -O1 -ffunction-sections -fdata-sections -DCUDA_MAJOR=12 -DCUDA_MINOR=9)
    for folder in "$@" "$work/$program"/venv/lib/python*/site-packages/nvidia/*/include; do
        flags+=(-isystem "$folder")
    done
}

# Compiles files of a source tree: objects TREE FILE...
objects() {
    local tree=$1 file object
    shift
    mkdir -p "$work/$program/objects"
    for file in "$@"; do
        object=$work/$program/objects/${file//\//-}.o
        [ "$object" -nt "$tree/$file.cc" ] ||
            c++ "${flags[@]}" -c "$tree/$file.cc" -o "$object" || return
    done
}

# linked SOURCE FLAG...: links a program of ours with all objects.
linked() {
    local source=$1
    shift
    c++ "${flags[@]}" -Wall -Wextra -Werror -o "$work/$program/program" "$source" \
        "$work/$program"/objects/*.o "$@" -Wl,--gc-sections -ldl -lpthread
}

nccl_fetch() {
    [ -n "${NCCL:-}" ] || { skip 'NCCL names no source tree'; return; }
    [ -e "$NCCL/src/transport/net_ib/p2p.cc" ] || {
        skip "$NCCL has no src/transport/net_ib"
        return
    }
    cuda_fetch
}

# Builds its transport and dependencies; the test program has the rest: nccl_build MAJOR MINOR PATCH
nccl_build() {
    mkdir -p "$work/nccl/include"
    sed "s/\${nccl:Major}/$1/; s/\${nccl:Minor}/$2/; s/\${nccl:Patch}/$3/; s/\${nccl:Suffix}//
        s/\${nccl:Version}/$(printf '%d%02d%02d' "$@")/" "$NCCL/src/nccl.h.in" \
            >"$work/nccl/include/nccl.h"
    cuda_flags "$work/nccl/include" "$NCCL"/src/{include,include/plugin}
    flags+=(-DNCCL_OS_LINUX)
    objects "$NCCL/src" \
        transport/net_ib/{common,connect,gdr,init,p2p,p2p_resiliency,p2p_resiliency_recovery,reg} \
        os/linux debug \
        misc/{ibvsymbols,ibvwrap,mlx5dvsymbols,mlx5dvwrap,socket,utils,param} \
        param/{param,param_registry} &&
        linked tests/c/nccl.cpp
}

# Two ranks; then with four queue pairs for each connection, and then on two devices, IPv4 and IPv6,
# which NCCL merges into one.
nccl_run() {
    local name=$work/nccl good=1 way numbers other outputs=
    # shellcheck disable=SC2046
    set -- $(awk '/^NCCL_(MAJOR|MINOR|PATCH) / { print $3 }' "$NCCL/makefiles/version.mk")
    nccl_build "$@" >"$name.build" 2>&1 || {
        skip "$(grep -m 1 'error\|undefined' "$name.build")"
        return
    }
    for way in one several two; do
        numbers='97 98'
        export NCCL_DEBUG=WARN NCCL_IB_QPS_PER_CONNECTION=1 NCCL_IB_SPLIT_DATA_ON_QPS=0
        [ $way = several ] && NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1
        [ $way = two ] && numbers='all all'
        rm -rf "$name/meet"
        mkdir "$name/meet"
        on "${numbers#* }" "$name.$way.1" "$name/program" "$name/meet" 1 &
        other=$!
        on "${numbers% *}" "$name.$way.0" "$name/program" "$name/meet" 0 || good=0
        wait "$other" || good=0
        outputs="$outputs $name.$way.0 $name.$way.1"
    done
    local what='two ranks at once, 0 B to 16 MiB, groups of 8'
    what+='; one and four queue pairs, two devices as one'
    about "NCCL $1.$2.$3, its \`net_ib\` built alone" \
        "$what" 'every byte (`tests/c/nccl.cpp`)'
    # shellcheck disable=SC2086
    verdict "$good" 'rdma_writes rdma_reads' $outputs
}

uccl_fetch() {
    [ -n "${UCCL:-}" ] || { skip 'UCCL names no source tree'; return; }
    [ -e "$UCCL/p2p/uccl_engine.cc" ] || { skip "$UCCL has no p2p/uccl_engine.cc"; return; }
    [ -e "$work/uccl/.fetched" ] && return 0
    # libfabric's headers too.
    cuda_fetch && rm "$work/uccl/.fetched" && debian libfabric-dev
}

# As its Makefile does, without the Python module.
uccl_build() {
    local name wraps=()
    mkdir -p "$work/uccl/include"
    printf '%s\n' '#pragma once' 'typedef int PyGILState_STATE;' \
        'extern "C" int PyGILState_Ensure(), PyErr_CheckSignals();' \
        'extern "C" void PyGILState_Release(int);' >"$work/uccl/include/Python.h"
    cuda_flags "$work/uccl/include" "$work/uccl/root/usr/include" \
        "$UCCL"/p2p{,/util,/rdma,/rdma/providers,/nccl} "$UCCL/include"
    for name in get_device_list query_port reg_mr reg_dmabuf_mr create_cq create_qp qp_to_qp_ex; do
        wraps+=("-Wl,--wrap=ibv_$name")
    done
    objects "$UCCL/p2p" engine uccl_engine \
        util/{adaptive_sleeper,common,epoll_client,epoll_server,memory_allocator,seq_num} \
        rdma/{compression,efadv_dl,ibverbs_dl} \
        rdma/rdma_{connection,context,ctrl_channel,data_channel,device,endpoint} \
        rdma/providers/{efa,ib}_data_channel_impl cxi/{cxi_endpoint,fabric_dl} \
        nccl/{nccl_dl,nccl_endpoint} &&
        linked tests/c/uccl.cpp "${wraps[@]}"
}

uccl_run() {
    local name=$work/uccl good=1 other
    uccl_build >"$name.build" 2>&1 || {
        skip "$(grep -m 1 'error\|undefined' "$name.build")"
        return
    }
    # Forbids copies from GPU to GPU between peers of one host.
    export UCCL_P2P_RDMA_DEV=gdrc0 UCCL_P2P_DISABLE_IPC=1
    rm -rf "$name/meet"
    mkdir "$name/meet"
    on 101 "$name.target" "$name/program" "$name/meet" target &
    other=$!
    on 102 "$name.initiator" "$name/program" "$name/meet" initiator || good=0
    wait "$other" || good=0
    local what='its engine of point-to-point transfers (`p2p`):'
    what+=' WRITEs and READs, 1 B to 8 MiB, and lists of them'
    about "UCCL $(awk -F '"' '$1 == "__version__ = " { print $2 }' \
        "$UCCL/uccl/__init__.py"), source of ${UCCL_DATE:-an unknown date}" \
        "$what" 'every byte (`tests/c/uccl.cpp`)'
    verdict "$good" 'rdma_writes rdma_reads' "$name.target" "$name.initiator"
}

# Writes a program's row: write_row PROGRAM RESULT
write_row() {
    local about
    about=$(cat "$work/$1.about" 2>/dev/null) || return 0
    awk -v name="$1" -v row="| $1 | $about | $2 | $(date -u +%F) |" '
        /<!-- programs.sh: begin -->/ { inside = 1 }
        /<!-- programs.sh: end -->/ { if (!done) print row; inside = 0 }
        inside && index($0, "| " name " |") == 1 { if (!done) print row; done = 1; next }
        { print }' "$page" >"$work/page" && cat "$work/page" >"$page"
}

mkdir -p "$work"
if [ "${1:-}" = --inside ]; then
    program=$2
    # Without other processes' devices, ports and shared memory.
    ip link set lo up 2>/dev/null
    mount -t tmpfs none /dev/shm 2>/dev/null
    "${program}_run"
    exit
fi

alone=
unshare -rnm true 2>/dev/null && alone='unshare -rnm'
failed=0
for program in ${*:-$all}; do
    case " $all " in *" $program "*) ;; *) printf 'no program %s\n' "$program" >&2; exit 2 ;; esac
    rm -f "$work/$program.about"
    "${program}_fetch"
    result=$?
    if [ $result = 0 ]; then
        # shellcheck disable=SC2086
        $alone "$BASH" "$0" --inside "$program"
        result=$?
    fi
    case $result in
    0) write_row "$program" passed ;;
    77) ;;
    *) write_row "$program" FAILED; failed=$((failed + 1)) ;;
    esac
done
exit "$failed"
