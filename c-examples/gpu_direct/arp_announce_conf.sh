#!/bin/sh
# Usage: arp_announce_conf.sh [-n] [INTERFACE...]
#
# For several NICs of one machine in one subnet. Linux answers an ARP request for any of its
# addresses on any of them, so all traffic to the machine may arrive at one NIC, far from the GPU
# that it is for. This script makes each interface (default: all that are up and have an address)
# answer and ask for its own addresses only, and accept replies on another path than the route's.
# Needs root; -n prints the settings without making them. A reboot undoes them.
set -eu
dry=
[ "${1:-}" != -n ] || { dry=1; shift; }
case ${1:-} in -h | --help) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d; exit 0 ;;
-*) echo "unknown option $1: see --help" >&2; exit 2 ;; esac
proc=${PROC_SYS:-/proc/sys}/net/ipv4/conf

if [ $# -eq 0 ]; then
    # shellcheck disable=SC2046 # names of interfaces hold no blanks
    set -- $(ip -o -4 address show up scope global | awk '{ print $2 }' | sort -u)
fi
[ $# -gt 0 ] || { echo "no interface is up and has an address" >&2; exit 1; }
for interface in "$@"; do
    [ -d "$proc/$interface" ] || { echo "there is no interface $interface" >&2; exit 1; }
done

# arp_announce 2: ask with the address of the interface. arp_ignore 1: answer only for it. rp_filter
# 2: loose, any route back is accepted.
for interface in all "$@"; do
    for setting in arp_announce=2 arp_ignore=1 rp_filter=2; do
        file=$proc/$interface/${setting%=*}
        if [ -n "$dry" ]; then
            echo "would set net.ipv4.conf.$interface.$setting (now $(cat "$file"))"
        else
            echo "${setting#*=}" >"$file" ||
                { echo "cannot set $file: run as root, or try -n" >&2; exit 1; }
            echo "net.ipv4.conf.$interface.$setting"
        fi
    done
done
