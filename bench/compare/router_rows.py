# SPDX-License-Identifier: MIT OR Apache-2.0
"""The measurements of a router: each is one short run."""

import json
import os
import subprocess
import time

from contestants import MIB, UCX_TCP, Bench
from proc import Failed, Process, cores
from router_places import Router, core_of_router, router_of, tenants, until

RELAY = '[router]\nlocal = "relay"\n'
# Tenants of the load like HERD's, and of the worker's time for a record.
MANY = [f"t{n}" for n in range(16)]
# Tenants that have a session and say nothing, beside the two that talk.
IDLE = 254
# Bytes a second: few enough for a thread to keep all rings filled on a busy machine.
LINE, LIMIT, SLOW = 2_000_000, 1_000_000, 1_000_000
BULK = 8


class Load:
    """`router_load`, which puts rings and pairs of its own on a router."""

    def __init__(self, program, bin_dir, scale):
        self.program, self.bin, self.scale = program, bin_dir, scale

    def start(self, router, what, *options, stdin=None):
        command = [self.program, what, router.dir, *options]
        return Process(command, cores()[1], {"RUST_BACKTRACE": "0"}, stdin)

    def run(self, router, what, *options):
        done = self.start(router, what, *options).wait(40)
        return json.loads(done.text().strip().splitlines()[-1])

    def on(self, policy, what, *options):
        """The same on a router of its own, which has a core of its own."""
        router = Router(self.bin, policy, cores()[0])
        try:
            return self.run(router, what, *(o.replace("PID", str(router.pid)) for o in options))
        finally:
            router.stop()

    def records(self):
        return self.on(RELAY + tenants(MANY), "records", "pid=PID")

    def requests(self):
        many = f"tenants={len(MANY)}"
        return self.on(RELAY + tenants(MANY), "requests", many, "seconds=2", "pid=PID")

    def weights(self):
        policy = RELAY + f"line_rate = {LINE}\n"
        policy += tenants(["one", "two", "four", "sink"], two="weight = 2", four="weight = 4")
        shares = self.on(policy, "weights", "seconds=1", "pid=PID", "late_ms=60")
        return {**shares, "off": max(abs(1 - share) for share in shares.values())}

    def limit(self):
        policy = RELAY + tenants(["one", "sink"], one=f"tx_rate = {LIMIT}")
        limit = self.on(policy, "limit", "seconds=1", f"rate={LIMIT}", "pid=PID", "late_ms=30")
        return {**limit, "off": abs(1 - limit["share"])}

    def pings(self, bulk, pause_us):
        policy = RELAY + f"line_rate = {SLOW}\n"
        policy += tenants([f"b{n}" for n in range(bulk)] + ["ping", "sink"])
        return self.on(
            policy, "pings", f"bulk={bulk}", f"line={SLOW}", f"pause={pause_us}", "pings=40"
        )

    def first(self, idle):
        policy = RELAY + tenants(["one", "two"] + [f"i{n}" for n in range(idle)])
        return self.on(policy, "first", f"idle={idle}")

    def outlive(self):
        """A router is killed and started again at once, as a supervisor does."""
        metered = {name: "metered = true" for name in ("one", "two")}
        router = Router(self.bin, tenants(["one", "two", "three", "four"], **metered), cores()[0])
        load = self.start(router, "outlive", stdin=subprocess.PIPE)
        try:
            until("pairs", lambda: "moves" in load.said(), load)
            time.sleep(0.3)
            router.kill()
            router.start()
            time.sleep(1.5)
            load.popen.stdin.close()
            load.wait(5)
            return json.loads(load.text().strip().splitlines()[-1])
        finally:
            load.stop()
            router.stop()


class OneHost(Bench):
    """Two tenants of a router, and two processes without one."""

    def policy(self, way):
        names = ["red", "blue", "flood", "sink"]
        limit = 'tx_rate = "10MB"'
        return ("" if way == "direct" else RELAY) + tenants(names, flood=limit)

    def between(self, way, measure):
        """`measure` with two devices of tenants; with the worker's time for each frame."""
        router = Router(os.path.dirname(self.launcher), self.policy(way), core_of_router())
        try:
            devices = [router.device(name) for name in ("red", "blue")]
            before, ran = router.frames(), router.worker_ns()
            result = measure(devices)
            frames, ran = router.frames() - before, router.worker_ns() - ran
            if way == "relayed" and frames:
                result = {**result, "frames": frames, "worker_ns": ran / frames}
            return result
        finally:
            router.stop()

    def latency(self, way, n):
        if way == "plain":
            return self.gdrcore_latency("send", 64, n, path="shm")
        return self.between(way, lambda at: self.gdrcore_latency("send", 64, n, devices=at))

    def bandwidth(self, way, n):
        if way == "plain":
            return self.gdrcore_bandwidth("write", MIB, n, path="shm")
        return self.between(way, lambda at: self.gdrcore_bandwidth("write", MIB, n, devices=at))

    def batches(self, n):
        """SEND of 64 bytes in batches of 16."""
        more = ["-l", "16", "-t", "64"]
        run = lambda at: self.gdrcore_bandwidth("send", 64, n, devices=at, more=more)
        return self.between("relayed", run)

    def beside_a_flood(self, n, load):
        """WRITE of a tenant without a limit, beside one with a limit whose ring is always full."""
        router = Router(os.path.dirname(self.launcher), self.policy("relayed"), core_of_router())
        flood = load.start(router, "flood", stdin=subprocess.PIPE)
        try:
            until("a flood", lambda: "floods" in flood.said(), flood)
            devices = [router.device(name) for name in ("red", "blue")]
            result = self.gdrcore_bandwidth("write", MIB, n, devices=devices)
            if flood.done():
                raise Failed(f"the flood ended: {flood.complaint()}")
            return result
        finally:
            flood.stop()
            router.stop()


class Remote(Bench):
    """Remote mode beside the same kind of device in the program itself. `own`: one process, whose
    device has both ends; `remote`: the same on a router's device, whose thread has the other core.
    `plain`: two processes with a device each; `tenants`: two tenants of one device."""

    WAYS = {
        "own": "one process with both ends, a device of its own",
        "remote": "the same, the router's device",
        "plain": "two processes, a device each",
        "tenants": "two tenants, the router's device",
    }
    POLICY = tenants(
        ["red", "blue"], red='device = "soft:127.0.0.1"', blue='device = "soft:127.0.0.1"'
    )

    def run(self, way, measure):
        if way in ("own", "plain"):
            return measure(path="shm", both=way == "own")
        core = cores()[0] if way == "remote" else core_of_router()
        router = Router(os.path.dirname(self.launcher), self.POLICY, core)
        try:
            devices = [router.device(name) for name in ("red", "blue")]
            return measure(devices=devices, both=way == "remote")
        finally:
            router.stop()

    def latency(self, way, verb, n):
        return self.run(way, lambda **how: self.gdrcore_latency(verb, 64, n, **how))

    def bandwidth(self, way, size, n):
        return self.run(way, lambda **how: self.gdrcore_bandwidth("write", size, n, **how))

    def latencies(self, verb):
        counts = {"own": 100000, "remote": 50000, "plain": 100000, "tenants": 10000}
        row = lambda way: (way, self.WAYS[way], None, lambda: self.latency(way, verb, counts[way]))
        return [row(way) for way in self.WAYS]

    def bandwidths(self, size, n):
        row = lambda way: (way, self.WAYS[way], None, lambda: self.bandwidth(way, size, n))
        return [row(way) for way in self.WAYS]


class Veth(Bench):
    """Two hosts, with a router each or without."""

    def __init__(self, bin_dir, bare, scale, peers, hosts):
        super().__init__(bin_dir, bare, scale, peers, hosts.ends())
        self.bin, self.hosts = bin_dir, hosts

    def by_routers(self, measure):
        routers = []
        try:
            for n in range(2):
                routers.append(router_of(self.bin, self.hosts, n))
            return measure([routers[0].device("red"), routers[1].device("blue")])
        finally:
            for router in routers:
                router.stop()

    def router_latency(self, n):
        return self.by_routers(lambda at: self.gdrcore_latency("send", 64, n, devices=at))

    def router_bandwidth(self, n):
        return self.by_routers(lambda at: self.gdrcore_bandwidth("write", MIB, n, devices=at))


def host_latencies(b):
    return [
        ("plain", "two plain processes", None, lambda: b.latency("plain", 100000)),
        ("direct", "two tenants, direct", None, lambda: b.latency("direct", 100000)),
        ("relayed", "two tenants, relayed", None, lambda: b.latency("relayed", 10000)),
    ]


def host_bandwidths(b, load):
    return [
        ("plain", "two plain processes", None, lambda: b.bandwidth("plain", 3000)),
        ("direct", "two tenants, direct", None, lambda: b.bandwidth("direct", 3000)),
        ("relayed", "two tenants, relayed", None, lambda: b.bandwidth("relayed", 3000)),
        (
            "flooded", "two tenants, relayed, beside a flood with a limit", None,
            lambda: b.beside_a_flood(3000, load),
        ),
    ]


def veth_latencies(b):
    return [
        *b.ucx("ucx", "UCX tcp, tag", lambda of: b.ucx_latency(of, UCX_TCP, "tag_lat", 64, 20000)),
        ("routers", "gdrcore, a router each", None, lambda: b.router_latency(5000)),
        ("plain", "gdrcore", None, lambda: b.gdrcore_latency("send", 64, 20000)),
        ("echo", "bare UDP echo", None, lambda: b.bare_latency([], 64, 20000)),
        (
            "relayed_echo", "bare UDP echo, by a process more each", None,
            lambda: b.bare_latency(["-r"], 64, 5000),
        ),
        (
            "change", "a change of processes on one core, alone", None,
            lambda: b.bare_change(20000),
        ),
    ]


def veth_bandwidths(b):
    return [
        *b.ucx("ucx", "UCX tcp, tag", lambda of: b.ucx_bandwidth(of, UCX_TCP, "tag_bw", MIB, 1000)),
        ("routers", "gdrcore, a router each", None, lambda: b.router_bandwidth(500)),
        ("plain", "gdrcore", None, lambda: b.gdrcore_bandwidth("write", MIB, 1000)),
        ("gso", "bare UDP, GSO and GRO, ACKs", None, lambda: b.bare_bandwidth(["-g"], MIB, 1000)),
        (
            "relayed_gso", "bare UDP, GSO and GRO, ACKs, by a process more each", None,
            lambda: b.bare_bandwidth(["-g", "-r"], MIB, 500),
        ),
        ("iperf3", "iperf3, one TCP stream", "iperf3", lambda: b.iperf_bandwidth(1000)),
    ]


def worker_entries(b, load):
    return [
        ("full", "records of 64 bytes in full rings", None, load.records),
        ("batches", "SEND 64 B by queue pairs, batches of 16", None, lambda: b.batches(300000)),
        ("requests", "16 tenants, WRITE and SEND of 64 bytes", None, load.requests),
    ]


def qos_entries(load):
    return [
        ("weights", "weights 1, 2, 4", None, load.weights),
        ("limit", "a limit over a second", None, load.limit),
        ("pings", "pings beside one stream", None, lambda: load.pings(1, 0)),
        ("pings many", "pings beside eight streams", None, lambda: load.pings(BULK, 40000)),
    ]


def life_entries(load):
    return [
        ("first", "first message, two tenants", None, lambda: load.first(0)),
        ("first of many", "first message, 256 tenants", None, lambda: load.first(IDLE)),
        ("outlive", "kill -9 and a new router", None, load.outlive),
    ]
