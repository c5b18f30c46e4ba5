# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies one large file into tmpfs: rdma_copy_file, rsync, a plain TCP copy, nc. CPU times are sums
over both sides."""

import filecmp
import os
import re
import shutil
import tempfile

from contestants import CLIENT, SERVER
from proc import Failed, Process, await_port, cores

PORT = 18624
MIB = 1 << 20
STRACE_MIB = 256
# Suffix of the device's name: by default two processes of one host use shared memory; with path=udp
# they behave as two hosts.
OURS = {"gdrcore": "", "gdrcore udp": ",path=udp"}


def place(mib):
    """A folder on tmpfs, and the MiB of a file that fits twice into free memory there."""
    free = shutil.disk_usage("/dev/shm").free // MIB if os.path.isdir("/dev/shm") else 0
    available = next(
        int(line.split()[1]) // 1024
        for line in open("/proc/meminfo")
        if line.startswith("MemAvailable")
    )
    fits = max(0, (min(free, available) - 1024) // 2)
    if fits < 64:
        return None, 0
    return tempfile.mkdtemp(prefix="gdrcore-compare-", dir="/dev/shm"), min(mib, fits)


def make_file(path, mib):
    block = os.urandom(16 * MIB)
    with open(path, "wb") as file:
        for at in range(0, mib, 16):
            file.write(block[: min(16, mib - at) * MIB])


def touch_memory(path, mib):
    """Writes and deletes a file of that size. A virtual machine's host may take back memory that is
    free, and to get it again costs more than a copy: without this, whoever comes after a pause
    pays."""
    make_file(path, mib)
    os.unlink(path)


class Copy:
    """The tools; `name` returns the commands of both sides."""

    def __init__(self, bin_dir, bare, work):
        self.tool, self.bare, self.work = (
            os.path.join(bin_dir, "rdma_copy/rdma_copy_file"), bare, work,
        )
        self.into = os.path.join(work, "in")
        self.config = os.path.join(work, "rsyncd.conf")
        with open(self.config, "w") as file:
            file.write(
                f"use chroot = no\nmax connections = 2\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
                f"pid file = {work}/rsyncd.pid\nlog file = /dev/null\n[in]\npath = {self.into}\n"
                f"read only = no\n"
            )

    def tools(self):
        """key, label, required program."""
        return [
            ("gdrcore", "rdma_copy_file (CRC-32C checked)", None),
            ("gdrcore udp", "rdma_copy_file, path=udp", None),
            ("rsync", "rsync daemon, --whole-file", "rsync"),
            ("tcp", "read and write through a TCP socket", None), ("nc", "nc", "nc"),
        ]

    def _commands(self, key, source, target):
        port = str(PORT)
        if key in OURS:
            path = OURS[key]
            return (
                [self.tool, "-q", "-1", "-d", f"soft:{SERVER}{path}", "-p", port, "-o", self.into],
                [self.tool, "-q", "-d", f"soft:{CLIENT}{path}", "-p", port, SERVER, source],
            )
        if key == "rsync":
            return (
                [
                    "rsync", "--daemon", "--no-detach", f"--config={self.config}",
                    f"--address={SERVER}", f"--port={port}",
                ],
                ["rsync", "--whole-file", source, f"rsync://{SERVER}:{port}/in/"],
            )
        if key == "tcp":
            return [self.bare, "-p", port, "get", SERVER, target], [
                self.bare, "-p", port, "put", SERVER, source,
            ]
        return ["nc", "-l", "-d", SERVER, port], ["nc", "-N", SERVER, port]

    def run(self, key, source, check=False, traced=False, seconds=30.0):
        """Copies once. Returns wall, user and sys seconds, or with `traced` the number of system
        calls."""
        shutil.rmtree(self.into, ignore_errors=True)
        os.mkdir(self.into)
        touch_memory(os.path.join(self.work, "touched"), os.path.getsize(source) // MIB)
        target = os.path.join(self.into, os.path.basename(source))
        commands, logs = self._commands(key, source, target), []
        if traced:
            logs = [os.path.join(self.work, f"strace.{side}") for side in "sc"]
            commands = [
                ["strace", "-f", "-c", "-o", log] + command for log, command in zip(logs, commands)
            ]
        server_core, client_core = cores()
        sink = open(target, "wb") if key == "nc" else None
        feed = open(source, "rb") if key == "nc" else None
        server = Process(commands[0], server_core, stdout=sink)
        try:
            await_port("tcp", PORT, server)
            client = Process(commands[1], client_core, stdin=feed).wait(seconds)
            begun = client.begun
            if key != "rsync":
                server.wait(5.0)
            wall = (
                max(client.begun + client.wall, server.begun + server.wall if key != "rsync" else 0)
                - begun
            )
        finally:
            if traced and key == "rsync":
                # strace passes our signal on only if it is the one to end, so the daemon's own pid
                # is read from its file.
                try:
                    os.kill(int(open(f"{self.work}/rsyncd.pid").read()), 15)
                    server.wait(5.0)
                except (OSError, ValueError, Failed):
                    pass
            server.stop()
            for file in (sink, feed):
                if file:
                    file.close()
        if os.path.getsize(target) != os.path.getsize(source) or (
            check and not filecmp.cmp(source, target, shallow=False)
        ):
            raise Failed("the copy differs")
        if traced:
            return {"calls": sum(calls_of(log) for log in logs)}
        return {"wall": wall, "user": client.user + server.user, "sys": client.sys + server.sys}


def calls_of(log):
    """The number of calls that strace -c counted, from its last line."""
    for line in reversed(open(log).read().splitlines()):
        found = re.match(r"\s*100\.00\s+\S+\s+\S+\s+(\d+)\s+(?:\d+\s+)?total", line)
        if found:
            return int(found.group(1))
    raise Failed("strace wrote no table")
