#!/usr/bin/python3
"""Recomputes the ICRC of every RoCEv2 frame of captures, without any code of gdrcore.

Usage: icrc_check.py [--port N]... [--min-frames N] FILE.pcap...

Over IPv4 each frame is computed twice: by scapy's RoCE layer and by the few lines below that follow
the definition (scapy knows no IPv6). Both must agree with the frame. Prints one line per file, with
the opcodes and the highest IPv4 identification seen (the segments of a GSO send have 0, 1, 2, ...);
exits 1 on any wrong ICRC, on fewer RoCE frames than asked for, and on a frame that was cut. """
import argparse
import collections
import struct
import sys
import zlib

DEFAULT_PORT = 4791
BTH_LEN, ICRC_LEN = 12, 4


def by_definition(ip, udp):
    """The ICRC as bytes on the wire, from the IP header and the bytes behind it."""
    ip, udp = bytearray(ip), bytearray(udp)
    if ip[0] >> 4 == 4:
        ip[1] = ip[8] = 0xFF  # TOS, TTL
        ip[10:12] = b"\xff\xff"  # header checksum
    else:
        ip[0] |= 0x0F  # traffic class and flow label
        ip[1:4] = b"\xff\xff\xff"
        ip[7] = 0xFF  # hop limit
    udp[6:8] = b"\xff\xff"  # UDP checksum
    udp[8 + 4] = 0xFF  # FECN, BECN, reserved
    body = bytes(ip) + bytes(udp[:-ICRC_LEN])
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + body) & 0xFFFFFFFF)


def check(path, ports, scapy):
    """Returns (RoCE frames, faults, opcode counts, highest IPv4 identification) of one capture."""
    frames, faults, opcodes, ident = 0, [], collections.Counter(), 0
    for number, packet in enumerate(scapy["PcapReader"](path), 1):
        udp = packet.getlayer(scapy["UDP"])
        if udp is None or udp.dport not in ports:
            continue
        ip_layer = udp.underlayer
        is_v4 = isinstance(ip_layer, scapy["IP"])
        if not is_v4 and not isinstance(ip_layer, scapy["IPv6"]):
            continue
        raw = bytes(scapy["raw"](ip_layer.original))
        header = (raw[0] & 15) * 4 if is_v4 else 40
        total = struct.unpack("!H", raw[2:4])[0] if is_v4 else 40 + struct.unpack("!H", raw[4:6])[0]
        frames += 1
        if len(raw) < total or total < header + 8 + BTH_LEN + ICRC_LEN:
            faults.append(f"frame {number}: {len(raw)} bytes where its IP header says {total}")
            continue
        raw = raw[:total]
        opcodes[raw[header + 8]] += 1
        on_wire = raw[-ICRC_LEN:]
        computed = {"by definition": by_definition(raw[:header], raw[header:])}
        if is_v4:
            ident = max(ident, struct.unpack("!H", raw[4:6])[0])
            again = scapy["IP"](raw)
            bth = again.getlayer(scapy["BTH"])
            if bth is None:
                faults.append(f"frame {number}: scapy finds no BTH")
                continue
            computed["by scapy"] = bth.compute_icrc(b"")
        for who, value in computed.items():
            if value != on_wire:
                faults.append(
                    f"frame {number}: ICRC {on_wire.hex()} on the wire, {value.hex()} {who}"
                )
    return frames, faults, opcodes, ident


def main():
    """Parses the command line and checks each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--port", type=int, action="append",
        help="UDP port of RoCEv2 (default 4791); may be repeated",
    )
    parser.add_argument(
        "--min-frames", type=int, default=1, help="least RoCE frames that each file must hold"
    )
    parser.add_argument("files", nargs="+", metavar="FILE.pcap")
    args = parser.parse_args()

    from scapy.packet import bind_layers
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.compat import raw
    from scapy.utils import PcapReader

    ports = args.port or [DEFAULT_PORT]
    for port in ports:
        if port != DEFAULT_PORT:  # scapy binds that one itself
            bind_layers(UDP, BTH, dport=port)
    scapy = {"BTH": BTH, "IP": IP, "IPv6": IPv6, "UDP": UDP, "raw": raw, "PcapReader": PcapReader}

    bad = False
    for path in args.files:
        frames, faults, opcodes, ident = check(path, ports, scapy)
        if frames < args.min_frames:
            faults.append(f"only {frames} RoCE frames, {args.min_frames} wanted")
        seen = " ".join(f"{opcode:02x}:{count}" for opcode, count in sorted(opcodes.items()))
        print(
            f"{path}: {frames} frames, {len(faults)} wrong, identifications to {ident}, opcodes "
            f"{seen}"
        )
        for fault in faults[:10]:
            print(f"  {fault}")
        bad = bad or bool(faults)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
