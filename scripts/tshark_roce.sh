#!/usr/bin/env bash
# Usage: tshark_roce.sh [-p PORT]... FILE.pcap [OPTION OF TSHARK]... Runs tshark on a capture of
# RoCEv2 packets, without its heuristics. -p: a UDP port besides 4791 that carries RoCEv2.
#
# tshark guesses the protocol of a SEND's or WRITE's payload (RPC over RDMA, iSER, Ethernet ...) and
# reports random payload as a malformed packet of that protocol, in captures of hardware and of
# Linux rxe too. So these heuristics are off.
set -u
options=(-o udp.check_checksum:FALSE -o udp.ignore_ipv6_zero_checksum:TRUE)
while getopts p: option; do
    case $option in p) [ "$OPTARG" = 4791 ] || options+=(-d "udp.port==$OPTARG,infiniband") ;;
    *) exit 2 ;; esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || exit 2
file=$1
shift

# Names differ between versions of tshark: unknown ones are left out.
guesses=(eth_over_ib mellanox_eoib rpcrdma_infiniband iser_infiniband smb_direct_infiniband
    sdp_infiniband
    lnet_ib fc_infiniband nvme_rdma smcr_infiniband)
without=()
for guess in "${guesses[@]}"; do without+=(--disable-heuristic "$guess"); done
unknown=$(tshark "${without[@]}" -c 1 -r "$file" 2>&1 >/dev/null |
    sed -n 's/.*No such protocol \([a-z_]*\),.*/\1/p')
for guess in "${guesses[@]}"; do
    [[ " $unknown " == *"$guess"* ]] || options+=(--disable-heuristic "$guess")
done
exec tshark "${options[@]}" -r "$file" "$@" 2> >(grep -v '^Running as user' >&2)
