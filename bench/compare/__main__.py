# SPDX-License-Identifier: MIT OR Apache-2.0
"""`make compare`: gdrcore against bare sockets and its peers, alternating, in one bounded run."""

import argparse
import os
import shutil
import signal
import sys
import tempfile

import contestants
import draw
import files
import proc
import report
from machine import (
    ROOT, Before, compile_bare, compile_floor, compile_verbs_rate, facts_of, tools,
)
from peers import Peers
from run import Run


PHASES = ("latency", "bandwidth", "same-host", "rate", "drop-in", "threads", "file", "sizes")


class Compare(Run):
    def copies(self, bin_dir, bare):
        work, mib = files.place(self.args.file_mib)
        if not work:
            self.results.skip("not enough memory in /dev/shm for the file copies")
            return 0
        try:
            if mib < self.args.file_mib:
                self.results.skip(f"memory for {mib} MiB only: the file is smaller")
            source, small = os.path.join(work, "file"), os.path.join(work, "small")
            files.make_file(source, mib)
            copy = files.Copy(bin_dir, bare, work)
            checked = set()

            def entry(key, label, program):
                def measure():
                    result = copy.run(key, source, check=key not in checked)
                    checked.add(key)
                    return result
                return key, label, program, measure

            self.alternate(
                [("file", [entry(*tool) for tool in copy.tools()], "")], f"file of {mib} MiB"
            )
            os.unlink(source)
            if shutil.which("strace") is None:
                self.results.skip("strace is not installed: system calls of the file copies")
                return mib
            print("system calls", flush=True)
            few = min(mib, files.STRACE_MIB)
            files.make_file(small, few)
            for key, label, program in copy.tools():
                calls = lambda key=key: {
                    "per_gib": copy.run(key, small, traced=True)["calls"] * 1024 / few
                }
                self.take("file calls", (key, label, program, calls), ", system calls")
            return mib
        finally:
            proc.stop_all()
            shutil.rmtree(work, ignore_errors=True)


def phases(args, bench, run, bare):
    """The phases that were asked for, each with a share of the time; returns the MiB of the copied
    file."""
    wants = lambda name: not args.only or name in args.only
    if wants("latency"):
        run.until(0.15).alternate([("lat", contestants.latencies(bench), "")], "latency")
    if wants("bandwidth"):
        run.until(0.27).alternate([("bw", contestants.bandwidths(bench), "")], "bandwidth")
    if wants("same-host"):
        run.until(0.40).alternate(
            [
                ("shm", contestants.same_host(bench), ", same host"),
                ("shm bw", contestants.same_host_bandwidth(bench), ", same host"),
            ],
            "same host",
        )
    if wants("rate"):
        run.until(0.47).alternate([("rate", contestants.rates(bench), ", rate")], "rate")
    if wants("drop-in"):
        run.until(0.56).alternate(
            [
                ("drop-in", contestants.drop_in(bench), ", drop-in"),
                ("drop-in bw", contestants.drop_in_bandwidth(bench), ", drop-in"),
            ],
            "drop-in",
        )
    if wants("threads"):
        run.until(0.66).alternate([("threads", contestants.threads(bench), "")], "threads", 3)
    mib = run.until(0.80).copies(args.bin, bare) if wants("file") else 0
    if wants("sizes"):
        run.until(1).alternate(
            [
                (("sizes", size), contestants.sizes(bench, size), f", {size} bytes")
                for size in contestants.SIZES
            ],
            "sizes", 2,
        )
    return mib


def main():
    parser = argparse.ArgumentParser(prog="make compare COMPARE_ARGS=", description=__doc__)
    parser.add_argument(
        "--bin", default=os.path.join(ROOT, "build/bin"), help="folder of the C examples"
    )
    parser.add_argument(
        "--out", default=os.path.join(ROOT, "bench"), help="folder of RESULTS.md and the figures"
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all message counts")
    parser.add_argument("--file-mib", type=int, default=2048)
    parser.add_argument(
        "--only", action="append", choices=PHASES,
        help="only this phase; may be given again. The page has no figures of the others"
    )
    parser.add_argument(
        "--budget", type=int, default=900, help="seconds after which no measurement begins"
    )
    args = parser.parse_args()
    # Ends the servers too if the run is killed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    peers = Peers()
    before = Before()
    temporary = tempfile.mkdtemp(prefix="gdrcore-bare-")
    try:
        bare = compile_bare(temporary)
        bench, run = contestants.Bench(args.bin, bare, args.scale, peers), Compare(args)
        run.results.skipped += peers.notes
        bench.verbs_rate, bench.floor = compile_verbs_rate(temporary), compile_floor(temporary)
        mib = phases(args, bench, run, bare)
    finally:
        proc.stop_all()
        shutil.rmtree(temporary, ignore_errors=True)
    results = run.results
    facts = facts_of(args, before, peers.versions() + tools("iperf3", "rsync"))
    when = f"{before.began:%Y-%m-%d}, {dict(facts)['commit']}"
    os.makedirs(args.out, exist_ok=True)
    histograms = [
        (results.labels["lat", key], report.merged(results.rounds["lat", key]))
        for key in ("send", "echo_ack", "ack_echo", "echo")
        if ("lat", key) in results.rounds
    ]
    points = (
        [
            (
                results.labels["lat", "ucx_tcp"],
                [(50, results.typical("ucx_tcp")), (99, results.get("lat", "ucx_tcp", "p99_us"))],
            )
        ]
        if ("lat", "ucx_tcp") in results.rounds
        else []
    )
    curves = [
        (label, results.curve(key))
        for key, label in (
            ("udp", "gdrcore WRITE"), ("bare_gso", "bare UDP, GSO and GRO"),
            ("ucx_tcp", "UCX tcp, put"), ("ucx_tcp_tag", "UCX tcp, tag"),
        )
        if results.curve(key)
    ]
    flat = (
        [("iperf3, one TCP stream", results.get("bw", "iperf3", "MB_per_s"))]
        if ("bw", "iperf3") in results.rounds
        else []
    )
    page = results.page(facts, mib)
    texts = [("RESULTS.md", page)]
    if histograms:
        texts.append(("latency.svg", draw.latency(histograms, points, when)))
    if curves:
        texts.append(("bandwidth.svg", draw.bandwidth(curves, flat, when)))
    for name, text in texts:
        with open(os.path.join(args.out, name), "w") as file:
            file.write(text)
    print(f"\n{page}\nwritten: {', '.join(os.path.join(args.out, name) for name, _ in texts)}")
    if run.failures:
        sys.exit(f"{run.failures} measurements of our own failed")


main()
