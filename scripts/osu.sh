#!/usr/bin/env bash
# Usage: osu.sh PREFIX. Runs the OSU micro-benchmarks, each that can check its data with that check,
# over Open MPI and UCX on the drop-in, between processes of one address, through memory and over
# UDP, and writes the counts into docs/records/OSU.md. PREFIX has the benchmarks, built by the
# mpicc of openmpi-bin and installed. Takes half an hour. A benchmark that fails runs again over
# Open MPI's own shared memory: the page says if it fails there, too. Left out are the two
# benchmarks of congestion, which need several hosts.
set -eu
[ $# = 1 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
dir=$(cd "$1" && pwd)/libexec/osu-micro-benchmarks/mpi
cd "$(dirname "$0")/.."
make --no-print-directory dropin >&2
run=$PWD/build/bin/gdrcore-run
page=docs/records/OSU.md
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
address=127.104.0.1
mpi=(mpirun.openmpi --allow-run-as-root --oversubscribe --mca plm_rsh_agent /bin/true)

# $1: the benchmark. One that checks its data has its option -c. Sums of the default type, MPI_CHAR,
# overflow and fail the check everywhere; UCX has no atomics of a byte.
arguments() {
    local help
    help=$("$dir/$1" --help 2>&1 || true)
    case $help in *--iterations*) printf '%s\n' -x 1 -i 5 ;; esac
    case $1 in *_latency_mt) printf '%s\n' -t 2:2 ;; esac
    case $help in *'--validation '*) printf '%s\n' -c ;; esac
    case $1 in
    *reduce*) printf '%s\n' -T mpi_int -m 4:65536 ;;
    *_cas_* | *_fop_*) printf '%s\n' -T mpi_int ;;
    *barrier) ;;
    *) case $help in *--message-size*) printf '%s\n' -m 1:65536 ;; esac ;;
    esac
}

# $1: the benchmark; the rest: what runs it, in front of it.
bench() {
    local name=$1 ranks=2 a
    shift
    case $name in collective/* | */osu_m*) ranks=4 ;; esac
    mapfile -t a < <(arguments "$name")
    timeout "${OSU_TIMEOUT:-600}" "${mpi[@]}" -np $ranks "$@" "$dir/$name" "${a[@]}" \
        >"$out/log" 2>&1
}

# Whether the last run checked data; found it wrong.
checked() { grep -qE 'Pass$|passed$' "$out/log"; }
wrong() { grep -qE 'Fail$|failed$|^FAILED' "$out/log"; }

declare -A count
for path in auto udp; do
    export GDRC_PATH=$path GDRC_STATS=1 UCX_TLS=rc_v,self UCX_NET_DEVICES=gdrc0:1
    for program in "$dir"/{pt2pt,pt2pt/persistent,collective,one-sided,startup}/osu_*; do
        name=${program#"$dir"/}
        group=${name%/*}
        if bench "$name" --mca pml ucx --mca osc ucx --mca btl self "$run" --address $address &&
            ! wrong && grep -q '^gdrcore: rdma_' "$out/log"; then
            what=ran
            ! checked || what=right
        else
            what=failed
            cp "$out/log" "/tmp/osu-${name##*/}-$path.log"
            if bench "$name" --mca pml ob1 --mca btl self,vader; then why=; else
                why=', and over Open MPI'\''s own shared memory'; fi
            printf -- '- `%s`, %s%s\n' "$name" "$path" "$why" >>"$out/failed"
        fi
        echo "$path $name $what" >&2
        count[$path/$group/$what]=$((${count[$path/$group/$what]:-0} + 1))
    done
done

{
    cat <<'PAGE'
# OSU micro-benchmarks on the drop-in

OSU's benchmarks of MPI, unmodified, over Open MPI and UCX (`rc_v`) on the drop-in, between
processes of one address: `scripts/osu.sh PREFIX`. Two ranks; four for collectives and for several
pairs. Messages of up to 64 KiB, a few of each size. "Right" are those that checked their data
(`-c`) and found each byte right, "ran" those that have no such check and ended without an error.
Each used the device, by its counters.

PAGE
    printf '%s; %s; UCX %s.\n\n' \
        "$("$dir/pt2pt/osu_latency" --version | sed -n 's/^# OSU MPI Latency Test/OSU/p')" \
        "$(mpirun.openmpi --version | sed -n '1s/.* /Open MPI /p')" \
        "$(ucx_info -v | sed -n 's/^# Version //p')"
    printf '| Benchmarks | Path | Right | Ran | Failed |\n|---|---|---|---|---|\n'
    for group in pt2pt pt2pt/persistent collective one-sided startup; do
        for path in auto udp; do
            label=memory
            [ $path = auto ] || label=UDP
            printf '| %s | %s | %s | %s | %s |\n' $group $label \
                "${count[$path/$group/right]:-0}" "${count[$path/$group/ran]:-0}" \
                "${count[$path/$group/failed]:-0}"
        done
    done
    if [ -s "$out/failed" ]; then printf '\nThose that failed:\n\n' && cat "$out/failed"; fi
} >"$page"
cat "$page"
