#!/bin/sh
# man_pages.sh [BIN TO VERSION]: writes the manual pages of the installed programs in BIN into
# TO/manN, from what each says with --help; without arguments it names all pages. RUN starts
# programs of another architecture.
set -eu
here=$(dirname "$0")
bin=${1:-}
to=${2:-}
date=$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%d)

# Page, words that say its text, section, and the program in a line.
while IFS='|' read -r name words section what; do
    if [ -z "$bin" ]; then
        echo "man$section/$name.$section"
        continue
    fi
    [ -e "$bin/${words%% *}" ] || continue
    # shellcheck disable=SC2086 # words of a command line
    told=$(LC_ALL=C HOME=/nonexistent ${RUN:-} "$bin"/$words --help)
    called=$(printf '%s\n' "$told" | sed -n '1s/^usage: \([^ ]*\).*/\1/p')
    mkdir -p "$to/man$section"
    printf '%s\n' "$told" | awk -v name="$name" -v section="$section" -v what="$what" \
        -v program="${words%% *}" -v called="$called" -v date="$date" -v version="$3" \
        -f "$here/man_page.awk" \
        >"$to/man$section/$name.$section"
    chmod 644 "$to/man$section/$name.$section"
done <<'PAGES'
gdrcore|gdrcore|1|all programs of gdrcore as one command, and a doctor for RDMA
gdrcore-doctor|gdrcore doctor|1|say what keeps RDMA from working
gdrcore-top|gdrcore top|1|show the soft devices of your processes, live
gdrcore-run|gdrcore-run|1|run a program of libibverbs without an RDMA NIC
gdrcore-routerd|gdrcore-routerd|8|router of RDMA for the containers of a host
gdrcore-routerctl|gdrcore-routerctl|8|read and change a running gdrcore-routerd
gdrcore-router-etcd|gdrcore-router-etcd|8|bring gdrcore-routerd its map of hosts from etcd
gdrcore-perf|gdrcore-perf|1|measure RDMA between two processes
gdrcore-pingpong|gdrcore-pingpong|1|bounce RDMA messages between two processes, and check them
gdrcore-devinfo|gdrcore-devinfo|1|list the soft devices of this machine
gdrcore-ping|gdrcore-ping|1|see whether a peer answers RDMA
gdrcore-gpu-server|gdrcore-gpu-server|1|move data into a client's memory by RDMA
gdrcore-gpu-client|gdrcore-gpu-client|1|have memory filled and checked by gdrcore-gpu-server
rdma_copy_file|rdma_copy_file|1|copy files by RDMA
PAGES
