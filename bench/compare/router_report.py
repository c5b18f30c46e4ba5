# SPDX-License-Identifier: MIT OR Apache-2.0
"""The page of a router's results: goals, tables, and the sections that others write."""

import re

from report import GOALS, Results, goal_row, number, over, table, wrapped

TITLE = "# Results of the router"
HEADING = "## The router beside others"


def with_section(page, heading, section):
    """The page with a section of the second level in place of that of the same heading; others
    stay as they are. The newest stands first."""
    parts = re.split(r"(?m)^(?=## )", page or TITLE + "\n\n")
    others = [part for part in parts[1:] if not part.startswith(heading + "\n")]
    return "\n\n".join(part.strip() for part in [parts[0], section, *others]) + "\n"


class RouterResults(Results):
    def lat(self, phase, ours, theirs):
        return self.ratio(phase, ours, theirs, "median_us")

    def speed(self, phase, ours, theirs):
        return self.ratio(phase, ours, theirs, "MB_per_s")

    def worst(self, phase, key, field):
        rounds = self.rounds.get((phase, key), [])
        return max((r[field] for r in rounds if field in r), default=None)

    def router_goals(self, cpus):
        rows = []
        goal = lambda *what, **how: rows.append(goal_row(*what, **how))
        goal("direct: SEND 64 B / two plain processes", self.lat("host", "direct", "plain"), 1.1,
             False)
        goal("direct: WRITE 1 MiB / two plain processes",
             self.speed("host bw", "direct", "plain"), 0.9, True)
        goal("relayed: the router's CPU for a record of 64 bytes, ns",
             self.get("worker", "full", "full_ns"), 150, False, digits=0)
        if cpus >= 3:
            goal("relayed: SEND 64 B / direct", self.lat("host", "relayed", "direct"), 2.5, False)
        goal("relayed: WRITE 1 MiB / direct", self.speed("host bw", "relayed", "direct"), 0.4, True)
        # Two processes and the router's thread spin: with fewer cores the scheduler is measured.
        pairs = [("remote", "own", "both ends in one process")]
        pairs += [("tenants", "plain", "two tenants")] if cpus >= 3 else []
        for ours, theirs, words in pairs:
            for verb in ("SEND", "WRITE"):
                trip = self.lat(f"remote {verb.lower()}", ours, theirs)
                goal(f"remote mode, {words}: {verb} 64 B / a device of its own", trip, 3, False)
            for size, shown in (("64k", "64 KiB"), ("1m", "1 MiB")):
                rate = self.speed(f"remote {size}", ours, theirs)
                goal(f"remote mode, {words}: WRITE {shown} / a device of its own", rate, 0.9, True)
        latency = 1.6 if cpus >= 4 else 3
        goal("two hosts: SEND 64 B / without routers", self.lat("veth", "routers", "plain"),
             latency, False)
        goal("two hosts: WRITE 1 MiB / without routers",
             self.speed("veth bw", "routers", "plain"), 0.6, True)
        goal("two hosts: SEND 64 B / UCX tcp", self.lat("veth", "routers", "ucx"), 1, False)
        goal("two hosts: WRITE 1 MiB / UCX tcp, tag",
             self.speed("veth bw", "routers", "ucx"), 1, True)
        goal("a tenant without a limit beside a flood with one / alone",
             self.speed("host bw", "flooded", "relayed"), 0.9, True)
        goal("weights 1, 2, 4: the worst share, off by", self.worst("qos", "weights", "off"),
             0.05, False, digits=4)
        goal("a limit over a second: the worst round, off by", self.worst("qos", "limit", "off"),
             0.02, False, digits=4)
        goal("a ping beside a stream, median wait in its frames",
             self.get("qos", "pings", "frames"), 2, False)
        goal("a ping beside eight streams, median wait in their rounds",
             self.get("qos", "pings many", "rounds"), 0.5, False)
        goal("first message of idle tenants, 256 of them, us",
             self.get("life", "first of many", "median_us"), 100, False, digits=0)
        goal("a relayed pair: kill -9 of the router to traffic, the worst, ms",
             self.worst("life", "outlive", "relayed_ms"), 500, False, digits=0)
        for where, words, place in (
            ("one", "one host", "one"),
            ("remote", "one host, remote mode", "one"),
            ("two", "two hosts", "two"),
        ):
            ours = self.get("freeflow", f"ours {where}", "median_us")
            theirs = self.get("freeflow", f"theirs {place}", "median_us")
            if theirs:
                trip = over(ours, theirs)
                goal(f"round trip of 4 KiB, {words} / FreeFlow", trip, 0.5, False, digits=4)
                goal(f"bandwidth of those, {words} / FreeFlow", over(theirs, ours), 2, True)
        return table(GOALS, rows)

    def freeflow_table(self):
        keys = sorted(self.keys("freeflow"))
        cells = [
            [self.labels["freeflow", key], number(self.get("freeflow", key, "median_us"))]
            for key in keys
        ]
        return table(["ibv_uc_pingpong, 4 KiB, there and back, us", "median"], cells)

    def worker_table(self):
        rows = [
            ["records in full rings of 16 tenants", "full", "full_ns"],
            ["records of one tenant to another, up to 128 under way", "full", "batches_ns"],
            ["SEND 64 B by queue pairs in batches of 16: a frame, ACKs too", "batches",
             "worker_ns"],
            ["16 tenants, WRITE and SEND of 64 B: a message, with its ACK", "requests",
             "worker_ns"],
        ]
        cells = [[what, number(self.get("worker", key, field), 0)] for what, key, field in rows]
        return table(["the worker's CPU, ns", "median"], cells)

    def qos_table(self):
        get = lambda key, field: self.get("qos", key, field)
        rows = [
            [f"weight {weight}: share, as a part of its own", number(get("weights", name), 4)]
            for weight, name in ((1, "one"), (2, "two"), (4, "four"))
        ]
        share = number(get("limit", "share"), 4)
        rows.append(["a limit of 1 MB/s: share that goes in a second", share])
        for key, streams in (("pings", "one stream"), ("pings many", "eight streams")):
            rows.append([f"a ping beside {streams}: wait, ms", number(get(key, "wait_ms"))])
            rows.append(["the same in frames of 4 KiB", number(get(key, "frames"))])
            rows.append(["the same in rounds", number(get(key, "rounds"))])
        return table(["rates and turns", "median"], rows)

    def life_table(self):
        get = lambda key, field: self.get("life", key, field)
        rows = [
            ["first message, 2 idle tenants, us", number(get("first", "median_us"), 0)],
            ["the same, 256 tenants, us", number(get("first of many", "median_us"), 0)],
            ["the same, p99, us", number(get("first of many", "p99_us"), 0)],
            ["kill -9: silence of a relayed pair, ms", number(get("outlive", "relayed_ms"), 1)],
            ["the same, a direct pair, ms", number(get("outlive", "direct_ms"), 1)],
        ]
        return table(["life", "median"], rows)

    def router_section(self, facts, cpus):
        requests = self.get("worker", "requests", "messages_per_s")
        share = self.get("worker", "requests", "worker_share")
        parts = [
            HEADING,
            "",
            "Written by `make compare-router`; not by hand. One run on one machine: the "
            "contestants take turns, round by round, and a figure is the median of the rounds. "
            "Ratios are medians over the rounds of the ratio within a round.",
            "",
            "\n".join(f"- {name}: {value}" for name, value in facts),
            "",
            "### Goals",
            "",
            self.router_goals(cpus),
            "",
            "### One host",
            "",
            self.latency_table("host", "SEND 64 B, half round trip, us", "direct"),
            "",
            self.bandwidth_table("host bw", "WRITE 1 MiB, MB/s", "direct"),
            "",
        ]
        if cpus < 3:
            parts += [
                "Relayed, three processes spin: two tenants and the router's worker. On this "
                "machine they share two cores, so the latency of the relay is the scheduler's, and "
                "has no goal.",
                "",
            ]
        parts += [
            "### Remote mode",
            "",
            self.latency_table("remote send", "SEND 64 B, half round trip, us", "own"),
            "",
            self.latency_table("remote write", "WRITE 64 B, half round trip, us", "own"),
            "",
            self.bandwidth_table("remote 64k", "WRITE 64 KiB, MB/s", "own"),
            "",
            self.bandwidth_table("remote 1m", "WRITE 1 MiB, MB/s", "own"),
            "",
            "### The worker",
            "",
            self.worker_table(),
            "",
            "CPU time of the router's relaying thread by schedstat. Rings are filled while the "
            "router is stopped, so that it never looks for work in vain; the other rows have its "
            "spinning in them. "
            + (
                f"The 16 tenants exchange {requests:.0f} messages a second, all driven by one "
                f"thread; the worker runs {share:.0%} of the time."
                if requests and share
                else ""
            ),
            "",
            "### Two hosts",
            "",
            self.latency_table("veth", "64 B, half round trip, us", "routers"),
            "",
            self.bandwidth_table("veth bw", "1 MiB messages, MB/s", "routers"),
            "",
            "Two network namespaces and a veth of MTU 9000 between them. "
            + (
                "Each host has one core here: its tenant and its router share it, so two changes "
                "of processes are in the way of each message."
                if cpus < 4
                else "The routers run on cores besides those of their tenants."
            ),
            "",
            "### Rates, weights, turns",
            "",
            self.qos_table(),
            "",
            "Rings that are kept full, and a line so slow that any machine fills it: 2 MB/s for "
            "weights, 1 MB/s for pings, which are sent one after the other beside one stream, and "
            "more than a round apart beside eight.",
            "",
            "### Idle tenants, and the router's end",
            "",
            self.life_table(),
            "",
        ]
        if self.keys("freeflow"):
            parts += [
                "### FreeFlow",
                "",
                self.freeflow_table(),
                "",
                "FreeFlow's router and its own client libraries, both on gdrcore's drop-in and "
                "libmempool.so, and unmodified programs by way of gdrcore's router; one after the "
                "other. Nothing of FreeFlow's that tells a rate of messages runs on it.",
                "",
            ]
        if self.skipped:
            parts += ["### Left out", "", "\n".join("- " + what for what in self.skipped), ""]
        return wrapped("\n".join(parts))
