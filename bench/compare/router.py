# SPDX-License-Identifier: MIT OR Apache-2.0
"""`make compare-router`: a router and its tenants against plain processes, UCX and bare sockets,
alternating, in one bounded run."""

import argparse
import os
import shutil
import signal
import sys
import tempfile

import freeflow
import proc
import router_places
import router_report
import router_rows as rows
from machine import ROOT, Before, compile_bare, facts_of, tools
from peers import Peers
from proc import Failed
from run import Run


def arguments():
    parser = argparse.ArgumentParser(prog="make compare-router COMPARE_ARGS=", description=__doc__)
    parser.add_argument(
        "--bin", default=os.path.join(ROOT, "build/bin"), help="folder of the programs"
    )
    parser.add_argument("--load", help="the program router_load", required=True)
    parser.add_argument(
        "--out", default=os.path.join(ROOT, "bench"), help="folder of RESULTS-ROUTER.md"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all message counts")
    parser.add_argument(
        "--budget", type=int, default=540, help="seconds after which no measurement begins"
    )
    parser.add_argument(
        "--nice", type=int, default=0,
        help="priority of all contestants, as root below 0: for a machine with other work",
    )
    return parser.parse_args()


def measure(run, args, bare, peers):
    load = rows.Load(args.load, args.bin, args.scale)
    host = rows.OneHost(args.bin, bare, args.scale, peers)
    run.until(0.30).alternate(
        [
            ("host", rows.host_latencies(host), ", one host"),
            ("host bw", rows.host_bandwidths(host, load), ", one host"),
        ],
        "one host",
    )
    remote = rows.Remote(args.bin, bare, args.scale, peers)
    name = ", remote mode"
    run.until(0.45).alternate(
        [
            ("remote send", remote.latencies("send"), name),
            ("remote write", remote.latencies("write"), name),
            ("remote 64k", remote.bandwidths(65536, 30000), name),
            ("remote 1m", remote.bandwidths(1 << 20, 3000), name),
        ],
        "remote mode",
    )
    run.until(0.55).alternate([("worker", rows.worker_entries(host, load), "")], "worker", 3)
    veth = None
    try:
        veth = rows.Veth(args.bin, bare, args.scale, peers, router_places.TwoHosts())
        run.until(0.82).alternate(
            [
                ("veth", rows.veth_latencies(veth), ", two hosts"),
                ("veth bw", rows.veth_bandwidths(veth), ", two hosts"),
            ],
            "two hosts",
        )
    except Failed as error:
        run.results.skip(f"no two hosts: {error}")
    run.until(0.92).alternate([("qos", rows.qos_entries(load), "")], "rates and turns", 3)
    run.until(1).alternate([("life", rows.life_entries(load), "")], "idle tenants, restart", 3)
    if veth:
        freeflow.FreeFlow(veth).add_to(run.results)


def favour(nice):
    """Gives this session and all programs a priority: the kernel weighs sessions before it weighs
    programs."""
    proc.set_nice(nice)
    try:
        before = open("/proc/self/autogroup").read().split()[-1]
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(nice))
        return before
    except OSError:
        return None


def main():
    args = arguments()
    # Ends all programs too if the run is killed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    peers = Peers(libfabric=False)
    before = Before()
    temporary = tempfile.mkdtemp(prefix="gdrcore-bare-")
    run = Run(args, router_report.RouterResults())
    run.results.skipped += peers.notes
    autogroup = favour(args.nice) if args.nice else None
    try:
        bare = compile_bare(temporary)
        measure(run, args, bare, peers)
    finally:
        proc.stop_all()
        router_places.stop_all_routers()
        shutil.rmtree(temporary, ignore_errors=True)
        if autogroup is not None:
            with open("/proc/self/autogroup", "w") as file:
                file.write(autogroup)
    facts = facts_of(args, before, peers.versions() + tools("iperf3"))
    if args.nice:
        facts.append(("priority of all contestants", f"nice {args.nice}"))
    section = run.results.router_section(facts, os.cpu_count() or 1)
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "RESULTS-ROUTER.md")
    page = open(path).read() if os.path.exists(path) else ""
    with open(path, "w") as file:
        file.write(router_report.with_section(page, router_report.HEADING, section))
    print(f"\n{section}\nwritten: {path}")
    if run.failures:
        sys.exit(f"{run.failures} measurements of our own failed")


main()
