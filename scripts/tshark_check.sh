#!/usr/bin/env bash
# Usage: tshark_check.sh [-p PORT]... FILE.pcap... Checks captures with Wireshark's dissectors:
# every RoCEv2 frame has a BTH, none is malformed, none has an error or warning.
set -u
ports=()
while getopts p: option; do
    case $option in p) ports+=("$OPTARG") ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
[ ${#ports[@]} -gt 0 ] || ports=(4791)

[ $# -gt 0 ] || exit 2

options=()
for port in "${ports[@]}"; do options+=(-p "$port"); done
warning=$((0x600000)) # severity of Wireshark's expert items
bad=0
for file in "$@"; do
    if ! "${0%/*}/tshark_roce.sh" "${options[@]}" "$file" -T fields -E separator='|' \
        -e frame.number -e udp.dstport -e infiniband.bth.opcode \
        -e _ws.malformed -e _ws.expert.severity -e frame.protocols -e _ws.expert.message \
        2>/dev/null |
        awk -F'|' -v ports="${ports[*]}" -v warning="$warning" -v file="$file" '
            BEGIN { n = split(ports, list, " "); for (i = 1; i <= n; i++) ours[list[i]] }
            { wrong = 0 }
            $2 in ours { all++; if ($3 != "") bth++; else wrong = 1 }
            $4 != "" { malformed++; wrong = 1 }
            {
                n = split($5, severity, ",")
                for (i = 1; i <= n; i++)
                    if (severity[i] + 0 >= warning) { warned++; wrong = 1; break }
            }
            wrong && shown++ < 10 { lines = lines "  " $0 "\n" }
            END {
                printf "%s: %d RoCE frames, %d with a BTH, %d malformed, %d with warnings\n%s",
                    file, all, bth, malformed, warned, lines
                exit (all == 0 || shown > 0)
            }'; then
        bad=1
    fi
done
exit $bad
