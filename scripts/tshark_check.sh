#!/usr/bin/env bash
# Usage: tshark_check.sh [-p PORT]... FILE.pcap...
# Wireshark's view of captures: every RoCEv2 frame has a BTH, none is malformed, none has an error or warning.
#
# tshark also guesses what the payload of a SEND or WRITE might be (RPC over RDMA, iSER, Ethernet ...) and calls
# random payload a malformed packet of that protocol, in captures of hardware and of Linux rxe too. Guessing is off.
set -u
ports=()
while getopts p: option; do
    case $option in p) ports+=("$OPTARG") ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
[ ${#ports[@]} -gt 0 ] || ports=(4791)

[ $# -gt 0 ] || exit 2

# Names differ between versions of tshark: those that it does not know are left out.
options=(-o udp.check_checksum:FALSE -o udp.ignore_ipv6_zero_checksum:TRUE)
for port in "${ports[@]}"; do
    [ "$port" = 4791 ] || options+=(-d "udp.port==$port,infiniband")
done
guesses=(eth_over_ib mellanox_eoib rpcrdma_infiniband iser_infiniband smb_direct_infiniband sdp_infiniband
    lnet_ib fc_infiniband nvme_rdma smcr_infiniband)
without=()
for guess in "${guesses[@]}"; do without+=(--disable-heuristic "$guess"); done
unknown=$(tshark "${without[@]}" -c 1 -r "$1" 2>&1 >/dev/null | sed -n 's/.*No such protocol \([a-z_]*\),.*/\1/p')
for guess in "${guesses[@]}"; do
    [[ " $unknown " == *"$guess"* ]] || options+=(--disable-heuristic "$guess")
done

warning=$((0x600000)) # severity of Wireshark's expert items
bad=0
for file in "$@"; do
    if ! tshark "${options[@]}" -r "$file" -T fields -E separator='|' -e frame.number -e udp.dstport -e infiniband.bth.opcode \
        -e _ws.malformed -e _ws.expert.severity -e frame.protocols -e _ws.expert.message 2>/dev/null |
        awk -F'|' -v ports="${ports[*]}" -v warning="$warning" -v file="$file" '
            BEGIN { n = split(ports, list, " "); for (i = 1; i <= n; i++) ours[list[i]] }
            { wrong = 0 }
            $2 in ours { all++; if ($3 != "") bth++; else wrong = 1 }
            $4 != "" { malformed++; wrong = 1 }
            { n = split($5, severity, ","); for (i = 1; i <= n; i++) if (severity[i] + 0 >= warning) { warned++; wrong = 1; break } }
            wrong && shown++ < 10 { lines = lines "  " $0 "\n" }
            END {
                printf "%s: %d RoCE frames, %d with a BTH, %d malformed, %d with warnings\n%s", file, all, bth, malformed, warned, lines
                exit (all == 0 || shown > 0)
            }'; then
        bad=1
    fi
done
exit $bad
