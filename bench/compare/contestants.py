# SPDX-License-Identifier: MIT OR Apache-2.0
"""The programs that are compared, and their measurements: each is one short run with a given number
of messages."""

import json
import os
import shutil

from proc import Failed, Process, cores, pair

SERVER, CLIENT = "127.0.0.1", "127.0.0.2"
PERF_PORT, BARE_PORT, UCX_PORT, FI_PORT, IPERF_PORT, TOOL_PORT = (
    18619, 4795, 18621, 18622, 18623, 18625,
)
MIB = 1 << 20
UCX_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n"}


def old(key):
    """The key of the same row for an older release of the peer."""
    return f"{key} old"


class Ends:
    """Where server and client are: their addresses, the interface between them, and what a command
    begins with to run there."""

    def __init__(self, server=SERVER, client=CLIENT, interface="lo", into=((), ())):
        self.server, self.client, self.interface, self.into = server, client, interface, into


UCX_SHM = {"UCX_TLS": "posix,cma,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}


class Bench:
    """Programs, the scale of all message counts, and where the ends are."""

    def __init__(self, bin_dir, bare, scale, peers, ends=None):
        self.ends, self.peers = ends or Ends(), peers
        self.perf, self.bare, self.scale = os.path.join(bin_dir, "perf/perf"), bare, scale
        self.launcher = os.path.join(bin_dir, "gdrcore-run")
        # The program of threads on verbs, if it could be compiled, and that of the floor.
        self.verbs_rate = self.floor = None

    def pair(self, server, client, port, **how):
        at_server, at_client = self.ends.into
        return pair([*at_server, *server], [*at_client, *client], port, **how)

    def times(self, n, least=64):
        return max(least, int(n * self.scale))

    # ---- gdrcore ------------------------------------------------------------------------------

    def _perf(
        self, verb, mode, size, n, loopback=False, path="udp", one_core=False, mem="host",
        no_progress=False, devices=None, more=(), pinned=True, both=False,
    ):
        """`devices`: those of server and client, in place of soft ones at their addresses. `both`:
        one process has both ends."""
        test = [verb, mode, "-s", str(size), "-n", str(n), "--json"] + (
            ["-H"] if mode == "lat" else []
        )
        test += ["--no-progress"] if no_progress else []
        test += more
        if loopback or both:
            command = [self.perf, "-d", "loopback"]
            if both:
                device = devices[0] if devices else f"soft:{self.ends.server},path={path}"
                command = [*self.ends.into[0], self.perf, "-d", device, "--both-ends"]
            done = Process(command + test, cores()[1] if pinned else None).wait(15)
        else:
            at = self.ends.server, self.ends.client
            devices = devices or [f"soft:{address},path={path}" for address in at]
            server, client = [
                [self.perf, "-d", device, "-p", str(PERF_PORT), "--mem", mem] for device in devices
            ]
            done = self.pair(server, client + test + [self.ends.server], PERF_PORT,
                             one_core=one_core, helper=no_progress, pinned=pinned)
        return json.loads(done.text())["results"][0]

    def gdrcore_latency(self, verb, size, n, **how):
        return self._perf(verb, "lat", size, self.times(n), **how)

    def gdrcore_bandwidth(self, verb, size, n, **how):
        return {"MB_per_s": self._perf(verb, "bw", size, self.times(n), **how)["MB_per_s"]}

    def gdrcore_rate(self, verb, size, n, threads=1, own=(), pinned=False, **how):
        """Messages of all threads of the client together; each has a CQ and a queue pair of its
        own, and what the option `own` says. They may run on any core if they are not pinned."""
        more = ["-T", str(threads), "-I", str(size), *own]
        result = self._perf(verb, "bw", size, self.times(n), more=more, pinned=pinned, **how)
        return {"Mmsg_per_s": result["Mmsg_per_s"]}

    # ---- unmodified perftest on the drop-in
    # ---------------------------------------------------------

    def _perftest(self, tool, size, n, *more):
        test = [
            tool, "-F", "-x", "0", "-d", "gdrc0", "-p", str(TOOL_PORT), "-s", str(size), "-n",
            str(n), *more,
        ]
        run = lambda address: [self.launcher, "--address", address, "--path", "shm"] + test
        server, client = self.ends.server, self.ends.client
        done = self.pair(run(server), run(client) + [server], TOOL_PORT)
        return [
            float(cell)
            for line in done.text().splitlines()
            if line.split()[:1] == [str(size)]
            for cell in line.split()
        ]

    def verbs_rate_of(self, threads, path, verb, n):
        """Messages of all threads of one program that drives both ends. It sees two devices, in a
        network of its own; its threads may run on any core."""
        network = "ip link set lo up; ip addr add 10.77.99.1/32 dev lo; "
        command = [
            "unshare", "-rn", "sh", "-c", network + 'exec "$@"', "sh", self.launcher, "--path",
            path, self.verbs_rate, str(threads), str(self.times(n)), verb,
        ]
        return {"Mmsg_per_s": float(Process(command, None).wait(30).text().split()[-1])}

    def perftest_latency(self, tool, size, n):
        row = self._perftest(tool, size, self.times(n))
        return {"min_us": row[2], "median_us": row[4], "p99_us": row[7], "p999_us": row[8]}

    def perftest_bandwidth(self, tool, size, n, *more):
        # A completion per 16 requests, as perf does. Its MB has 2^20 bytes.
        row = self._perftest(tool, size, self.times(n), "-Q", "16", *more)
        return {"MB_per_s": row[3] * MIB / 1e6, "Mmsg_per_s": row[4]}

    # ---- sockets alone --------------------------------------------------------------------------

    def _bare(self, mode, flags, size, n):
        done = self.pair(
            [self.bare, "-p", str(BARE_PORT)]
            + [flag for flag in flags if flag == "-r"]
            + ["echo", self.ends.server],
            [self.bare, "-p", str(BARE_PORT), "-s", str(size), "-n", str(n)]
            + flags
            + [mode, self.ends.client, self.ends.server],
            BARE_PORT,
            kind="udp",
        )
        return json.loads(done.text())["results"][0]

    def bare_latency(self, flags, size, n):
        return self._bare("lat", flags, size, self.times(n))

    def bare_bandwidth(self, flags, size, n):
        result = self._bare("bw", flags, size, self.times(n))
        return {"MB_per_s": result["MB_per_s"], "lost": result["lost"]}

    def _bare_cores(self, what, n, *options):
        """Between the two cores, through memory."""
        command = [self.bare, *options, "-n", str(self.times(n)), what]
        done = Process(command + [str(c) for c in cores()], cores()[0]).wait(15)
        return json.loads(done.text())["results"][0]

    def bare_hop(self, n):
        return self._bare_cores("hop", n)

    def bare_change(self, n):
        """Two processes of one core, which yield to each other."""
        core = str(cores()[0])
        command = [self.bare, "-n", str(self.times(n)), "hop", core, core]
        return json.loads(Process(command, cores()[0]).wait(15).text())["results"][0]

    def bare_pace(self, processes, n):
        """Work of processes that share nothing, one on each core, in units of some 100 ns."""
        own = [str(c) for c in cores()[:processes]]
        command = [self.bare, "-n", str(self.times(n)), "pace", *own]
        return json.loads(Process(command, None).wait(15).text())["results"][0]

    def floor_latency(self, n):
        """SEND and RECV with verbs' meaning, no library."""
        command = [self.floor, str(self.times(n)), *(str(c) for c in cores())]
        return json.loads(Process(command, cores()[0]).wait(15).text())["results"][0]

    def bare_ring(self, size, n):
        return self._bare_cores("ring", n, "-s", str(size))

    # ---- UCX ------------------------------------------------------------------------------------

    def _ucx(self, release, env, test, size, n, rank, threads=0):
        common = [*release.command("ucx_perftest"), "-p", str(UCX_PORT)]
        many = ["-T", str(threads)] if threads else []
        warm = max(4, min(n // 10, 5000))
        interface = {"UCX_NET_DEVICES": self.ends.interface} if "UCX_NET_DEVICES" in env else {}
        done = self.pair(
            common + many,
            common
            + [
                self.ends.server, "-t", test, "-s", str(size), "-n", str(n), "-w", str(warm), "-R",
                str(rank), "-f", "-v",
            ]
            + many,
            UCX_PORT,
            pinned=not threads,
            env={**release.env, **env, **interface},
        )
        row = done.text().strip().splitlines()[-1].split(",")
        # Of several threads it prints fewer columns; the last one is the rate of all in any case.
        if len(row) < (4 if threads else 8):
            raise Failed("ucx_perftest: " + done.complaint())
        return [float(cell) for cell in row]

    def ucx_latency(self, release, env, test, size, n):
        n = self.times(n)
        middle = self._ucx(release, env, test, size, n, 50.0)
        high = self._ucx(release, env, test, size, n, 99.0)
        return {"median_us": middle[1], "avg_us": middle[3], "p99_us": high[1]}

    def ucx_bandwidth(self, release, env, test, size, n):
        # Its MB has 2^20 bytes; column 5 is the average of the whole run.
        row = self._ucx(release, env, test, size, self.times(n), 50.0)
        return {"MB_per_s": row[5] * MIB / 1e6, "Mmsg_per_s": row[-1] / 1e6}

    def ucx_rate(self, release, env, test, size, n, threads):
        """Messages of all threads together; each has a worker of its own."""
        row = self._ucx(release, env, test, size, self.times(n), 50.0, threads)
        return {"Mmsg_per_s": row[-1] / 1e6}

    def ucx(self, key, label, measure):
        """The entries of UCX: its newest release, and the installed one beside it, as `key old`.
        `measure` takes the release."""
        entry = lambda key, label, release: (
            key, label, release.program("ucx_perftest"), lambda: measure(release)
        )
        peers = self.peers
        newest = [entry(key, label, peers.ucx)] if peers.ucx else []
        older = peers.older_ucx
        beside = [entry(old(key), f"{label} ({older.version})", older)] if older else []
        return newest + beside

    # ---- libfabric ------------------------------------------------------------------------------

    def _fi(self, provider, endpoint, size, n):
        # The server needs the same size option, or it waits for sizes that never come.
        common = [*self.peers.libfabric.command("fi_pingpong"), "-p", provider, "-e", endpoint]
        common += ["-I", str(n), "-S", str(size)]
        client = common + ["-P", str(FI_PORT), self.ends.server]
        done = self.pair(common + ["-B", str(FI_PORT)], client, FI_PORT)
        return done.text().strip().splitlines()[-1].split()

    def fi_latency(self, provider, endpoint, size, n):
        # It reports the mean only.
        return {"mean_us": float(self._fi(provider, endpoint, size, self.times(n))[6])}

    def fi_bandwidth(self, provider, endpoint, size, n):
        return {"MB_per_s": float(self._fi(provider, endpoint, size, self.times(n, 8))[5])}

    def fabric(self, key, label, measure):
        """The entry of libfabric's newest release, in a list that is empty if there is none."""
        release = self.peers.libfabric
        return [(key, label, release.program("fi_pingpong"), measure)] if release else []

    # ---- iperf3 ---------------------------------------------------------------------------------

    def iperf_bandwidth(self, n):
        common = ["iperf3", "-p", str(IPERF_PORT)]
        server = self.ends.server
        done = self.pair(common + ["-s", "-1", "-B", server],
                         common + ["-c", server, "-n", str(self.times(n) * MIB), "-J"], IPERF_PORT)
        return {"MB_per_s": json.loads(done.text())["end"]["sum_received"]["bits_per_second"] / 8e6}


def latencies(b):
    """key, label, required program, measurement: all of 64 bytes unless the label says otherwise.
    Programs to be compared directly are next to each other."""
    return [
        *b.fabric("fi_udp", "libfabric udp 64 B", lambda: b.fi_latency("udp", "dgram", 64, 30000)),
        ("send", "gdrcore SEND 64 B", None, lambda: b.gdrcore_latency("send", 64, 100000)),
        *b.ucx(
            "ucx_tcp", "UCX tcp, tag 64 B",
            lambda of: b.ucx_latency(of, UCX_TCP, "tag_lat", 64, 50000),
        ),
        (
            "echo_ack", "bare UDP echo, a 20-byte ACK after each answer", None,
            lambda: b.bare_latency(["-a"], 64, 100000),
        ),
        (
            "ack_echo", "bare UDP echo, a 20-byte ACK before each answer", None,
            lambda: b.bare_latency(["-b"], 64, 100000),
        ),
        ("echo", "bare UDP echo", None, lambda: b.bare_latency([], 64, 100000)),
        *b.fabric("fi_tcp", "libfabric tcp 64 B", lambda: b.fi_latency("tcp", "msg", 64, 30000)),
        (
            "write", "gdrcore WRITE 8 B, target polls memory", None,
            lambda: b.gdrcore_latency("write", 8, 100000),
        ),
        (
            "read", "gdrcore READ 64 B (there and back)", None,
            lambda: b.gdrcore_latency("read", 64, 50000),
        ),
        (
            "loopback", "gdrcore WRITE 8 B, loopback, one thread", None,
            lambda: b.gdrcore_latency("write", 8, 200000, loopback=True),
        ),
    ]


def same_host(b):
    """Two processes with shared memory, 8 bytes."""
    return [
        ("send", "gdrcore SEND", None, lambda: b.gdrcore_latency("send", 8, 200000, path="shm")),
        *b.ucx(
            "ucx_tag", "UCX shm, tag",
            lambda of: b.ucx_latency(of, UCX_SHM, "tag_lat", 8, 200000),
        ),
        (
            "write", "gdrcore WRITE, target polls memory", None,
            lambda: b.gdrcore_latency("write", 8, 200000, path="shm"),
        ),
        (
            "write_shared", "gdrcore WRITE into shared memory", None,
            lambda: b.gdrcore_latency("write", 8, 200000, path="shm", mem="shared"),
        ),
        *b.ucx(
            "ucx_put", "UCX shm, put",
            lambda of: b.ucx_latency(of, UCX_SHM, "ucp_put_lat", 8, 200000),
        ),
        (
            "watch", "gdrcore WRITE, target only watches, its helper receives", None,
            lambda: b.gdrcore_latency("write", 8, 50000, path="shm", no_progress=True),
        ),
        (
            "send_one_core", "gdrcore SEND, both on one core", None,
            lambda: b.gdrcore_latency("send", 8, 2000, path="shm", one_core=True),
        ),
        *b.fabric("fi_shm", "libfabric shm", lambda: b.fi_latency("shm", "rdm", 8, 50000)),
        ("floor", "SEND and RECV, no library", None, lambda: b.floor_latency(200000)),
        ("hop", "a cache line, no library", None, lambda: b.bare_hop(200000)),
    ]


def same_host_bandwidth(b):
    """The same with 1 MiB and with 64 MiB."""
    big = 64 * MIB
    return [
        (
            "write", "gdrcore WRITE", None,
            lambda: b.gdrcore_bandwidth("write", MIB, 5000, path="shm"),
        ),
        ("ring", "a ring of 256 KiB, no library", None, lambda: b.bare_ring(MIB, 5000)),
        (
            "write_shared", "gdrcore WRITE into shared memory", None,
            lambda: b.gdrcore_bandwidth("write", MIB, 10000, path="shm", mem="shared"),
        ),
        (
            "write_cma", "gdrcore WRITE by process_vm_writev", None,
            lambda: b.gdrcore_bandwidth("write", MIB, 5000, path="shm,cma"),
        ),
        *b.ucx(
            "ucx_tag", "UCX shm, tag (CMA)",
            lambda of: b.ucx_bandwidth(of, UCX_SHM, "tag_bw", MIB, 5000),
        ),
        *b.ucx(
            "ucx_put", "UCX shm, put",
            lambda of: b.ucx_bandwidth(of, UCX_SHM, "ucp_put_bw", MIB, 10000),
        ),
        (
            "write_big", "gdrcore WRITE, 64 MiB", None,
            lambda: b.gdrcore_bandwidth("write", big, 64, path="shm"),
        ),
        (
            "ring_big", "a ring of 256 KiB, no library, 64 MiB", None,
            lambda: b.bare_ring(big, 64),
        ),
        (
            "write_shared_big", "gdrcore WRITE into shared memory, 64 MiB", None,
            lambda: b.gdrcore_bandwidth("write", big, 64, path="shm", mem="shared"),
        ),
        *b.ucx(
            "ucx_tag_big", "UCX shm, tag (CMA), 64 MiB",
            lambda of: b.ucx_bandwidth(of, UCX_SHM, "tag_bw", big, 64),
        ),
    ]


def drop_in(b):
    """perftest on the drop-in, and the same operation by the C API, both over shared memory, 8 and
    64 bytes."""
    return [
        (
            "send", "gdrcore SEND 64 B", None,
            lambda: b.gdrcore_latency("send", 64, 100000, path="shm"),
        ),
        (
            "ib_send_lat", "ib_send_lat 64 B", "ib_send_lat",
            lambda: b.perftest_latency("ib_send_lat", 64, 100000),
        ),
        (
            "write", "gdrcore WRITE 8 B", None,
            lambda: b.gdrcore_latency("write", 8, 100000, path="shm"),
        ),
        (
            "ib_write_lat", "ib_write_lat 8 B", "ib_write_lat",
            lambda: b.perftest_latency("ib_write_lat", 8, 100000),
        ),
    ]


def drop_in_bandwidth(b):
    """The same for 64 KiB."""
    size = 64 << 10
    return [
        (
            "write", "gdrcore WRITE", None,
            lambda: b.gdrcore_bandwidth("write", size, 40000, path="shm"),
        ),
        (
            "ib_write_bw", "ib_write_bw", "ib_write_bw",
            lambda: b.perftest_bandwidth("ib_write_bw", size, 40000),
        ),
        (
            "send", "gdrcore SEND", None,
            lambda: b.gdrcore_bandwidth("send", size, 40000, path="shm"),
        ),
        (
            "ib_send_bw", "ib_send_bw", "ib_send_bw",
            lambda: b.perftest_bandwidth("ib_send_bw", size, 40000),
        ),
    ]


def bandwidths(b):
    """The same for messages of 1 MiB."""
    return [
        ("write", "gdrcore WRITE", None, lambda: b.gdrcore_bandwidth("write", MIB, 3000)),
        *b.ucx(
            "ucx_tcp_tag", "UCX tcp, tag",
            lambda of: b.ucx_bandwidth(of, UCX_TCP, "tag_bw", MIB, 3000),
        ),
        ("iperf3", "iperf3, one TCP stream", "iperf3", lambda: b.iperf_bandwidth(2000)),
        (
            "bare_gso", "bare UDP, GSO and GRO, ACKs", None,
            lambda: b.bare_bandwidth(["-g"], MIB, 4000),
        ),
        *b.ucx(
            "ucx_tcp", "UCX tcp, put",
            lambda of: b.ucx_bandwidth(of, UCX_TCP, "ucp_put_bw", MIB, 3000),
        ),
        ("send", "gdrcore SEND", None, lambda: b.gdrcore_bandwidth("send", MIB, 3000)),
        ("read", "gdrcore READ", None, lambda: b.gdrcore_bandwidth("read", MIB, 3000)),
        (
            "bare", "bare UDP, one datagram a call, ACKs", None,
            lambda: b.bare_bandwidth([], MIB, 600),
        ),
        *b.fabric(
            "fi_tcp", "libfabric tcp, ping-pong", lambda: b.fi_bandwidth("tcp", "msg", MIB, 500)
        ),
    ]


THREADS = (1, 2)


def threads(b):
    """Small messages by one and by two threads: on one engine of a context, with an engine each,
    with a context each. First each thread drives both ends, then only one; so do UCX's workers."""
    def ours(key, label, verb, size, n, **how):
        rate = lambda count, *own: lambda: b.gdrcore_rate(verb, size, n, count, own, **how)
        many = lambda count: f"{label}, {count} thread" + "s" * (count > 1)
        last = THREADS[-1]
        return [(f"{key} {t}", many(t), None, rate(t)) for t in THREADS] + [
            (f"{key} engines", many(last) + ", an engine each", None, rate(last, "--engines")),
            (f"{key} contexts", many(last) + ", a context each", None, rate(last, "--contexts")),
        ]

    def by_count(key, label, who, program, rate):
        return [
            (f"{key} {t}", f"{label}, {t} {who}" + "s" * (t > 1), program, lambda t=t: rate(t))
            for t in THREADS
        ]

    def ucx(key, label, env, size, n):
        return [
            entry for t in THREADS
            for entry in b.ucx(
                f"{key} {t}", f"{label}, {t} worker" + "s" * (t > 1),
                lambda of, t=t: b.ucx_rate(of, env, "tag_bw", size, n, t),
            )
        ]

    def verbs(key, label, path, verb, n):
        rate = lambda count: b.verbs_rate_of(count, path, verb, n)
        return by_count(key, label, "thread", "unshare", rate) if b.verbs_rate else []

    paces = [("pace 1", "arithmetic alone, 1 process"), ("pace 2", "arithmetic alone, 2 processes")]
    return [
        *[(key, label, None, lambda n=n: b.bare_pace(n, 3000000))
          for n, (key, label) in enumerate(paces, 1)],
        *ours("loop", "gdrcore WRITE 8 B within a context", "write", 8, 2000000, loopback=True),
        *ours("both_shm", "gdrcore SEND 8 B through memory, both ends", "send", 8, 500000,
              path="shm", both=True),
        *ours("both_udp", "gdrcore SEND 64 B, UDP, both ends", "send", 64, 200000, both=True),
        *ours("shm", "gdrcore SEND 8 B through memory", "send", 8, 500000, path="shm"),
        *ucx("ucx_shm", "UCX shm, tag 8 B", UCX_SHM, 8, 500000),
        *ours("udp", "gdrcore SEND 64 B, UDP", "send", 64, 300000),
        *ucx("ucx_tcp", "UCX tcp, tag 64 B", UCX_TCP, 64, 300000),
        *verbs("verbs_loop", "drop-in, WRITE 8 B within a device", "shm", "write", 15000000),
        *verbs("verbs_shm", "drop-in, SEND 8 B through memory, both ends", "shm", "send", 6000000),
        *verbs("verbs_udp", "drop-in, SEND 8 B, UDP, both ends", "udp", "send", 1200000),
    ]


RATE = 1000000


def rates(b):
    """8 bytes in one direction between two processes, each on its core; then the drop-in."""
    ours = lambda key, label, verb, **how: (
        key, label, None, lambda: b.gdrcore_rate(verb, 8, RATE, pinned=True, path="shm", **how)
    )
    ucx = lambda key, label, test: b.ucx(
        key, label, lambda of: b.ucx_bandwidth(of, UCX_SHM, test, 8, RATE)
    )
    drop_in = lambda key, label, tool: (
        key, label, tool, lambda: b.perftest_bandwidth(tool, 8, RATE, "-I", "8")
    )
    return [
        ours("send", "gdrcore SEND", "send"),
        *ucx("ucx_tag", "UCX shm, tag", "tag_bw"),
        ours("write", "gdrcore WRITE", "write"),
        ours("write_shared", "gdrcore WRITE into shared memory", "write", mem="shared"),
        *ucx("ucx_put", "UCX shm, put", "ucp_put_bw"),
        drop_in("ib_send_bw", "ib_send_bw on the drop-in", "ib_send_bw"),
        drop_in("ib_write_bw", "ib_write_bw on the drop-in", "ib_write_bw"),
    ]


SIZES = [1, 8, 64, 256, 1024, 4096, 16384, 65536, 262144, MIB, 4 * MIB]
# Ways of a row of sizes: through memory, ours and UCX's, then by sockets.
OURS_SHM = ("send", "write", "read", "mapped", "cma")
UCX_SHM_KEYS = ("ucx_tag", "ucx_put")
OURS_UDP = ("udp", "udp_send")
UCX_TCP_KEYS = ("ucx_tcp_tag", "ucx_tcp")


def sizes(b, size):
    """Messages of one size in one direction, by every way."""
    n = max(64, min(100000, 256 * MIB // size))
    many = max(64, min(300000, 512 * MIB // size))
    inline = ["-I", str(size)] if size <= 220 else []
    ours = lambda key, label, verb, path, **how: (
        key, label, None,
        lambda: b.gdrcore_bandwidth(verb, size, many if "shm" in path else n, path=path, **how),
    )
    ucx = lambda key, label, env, test, count: b.ucx(
        key, label, lambda of: b.ucx_bandwidth(of, env, test, size, count)
    )[:1]
    return [
        ours("send", "SEND", "send", "shm", more=inline),
        ours("write", "WRITE", "write", "shm", more=inline),
        ours("read", "READ", "read", "shm"),
        ours("mapped", "WRITE, mapped", "write", "shm", mem="shared", more=inline),
        ours("cma", "WRITE, CMA", "write", "shm,cma", more=inline),
        *ucx("ucx_tag", "UCX tag", UCX_SHM, "tag_bw", many),
        *ucx("ucx_put", "UCX put", UCX_SHM, "ucp_put_bw", many),
        ours("udp", "UDP WRITE", "write", "udp", more=inline),
        ours("udp_send", "UDP SEND", "send", "udp", more=inline),
        (
            "bare_gso", "bare GSO/GRO", None,
            lambda: b.bare_bandwidth(["-g"], size, n),
        ),
        *ucx("ucx_tcp_tag", "UCX tcp tag", UCX_TCP, "tag_bw", n),
        *ucx("ucx_tcp", "UCX tcp put", UCX_TCP, "ucp_put_bw", n),
    ]


def missing(program):
    return program is not None and shutil.which(program) is None
