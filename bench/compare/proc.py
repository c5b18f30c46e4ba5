# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processes of the comparison: pinned to a core, limited in time, with their CPU time, and killed
by their own pid only."""

import os
import signal
import subprocess
import tempfile
import time

_live = []


class Failed(Exception):
    """A program failed in its measurement; the text is the reason."""


def cores():
    """A core for the server and one for the client; the same one if there is no second."""
    mine = sorted(os.sched_getaffinity(0))
    seen, distinct = set(), []
    for cpu in mine:
        # Hardware threads of one core would share what is measured.
        at = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
        try:
            place = open(at + "physical_package_id").read() + open(at + "core_id").read()
        except OSError:
            place = str(cpu)
        if place not in seen:
            seen.add(place)
            distinct.append(cpu)
    best = distinct if len(distinct) > 1 else mine
    return best[0], best[1 % len(best)]


class Process:
    """A running program; its output goes to files, so that nothing has to read it meanwhile."""

    def __init__(self, command, core, env=None, stdin=None, stdout=None):
        self.name = os.path.basename(command[0])
        self.out, self.err = stdout or tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.begun = time.monotonic()
        self.popen = subprocess.Popen(
            command, stdin=stdin or subprocess.DEVNULL, stdout=self.out, stderr=self.err,
            env=dict(os.environ, **(env or {})), preexec_fn=lambda: os.sched_setaffinity(0, {core}))
        self.user = self.sys = self.wall = 0.0
        self.rc = None
        _live.append(self)

    def done(self):
        if self.rc is None:
            pid, status, usage = os.wait4(self.popen.pid, os.WNOHANG)
            if pid:
                self.wall = time.monotonic() - self.begun
                self.user, self.sys = usage.ru_utime, usage.ru_stime
                self.rc = self.popen.returncode = os.waitstatus_to_exitcode(status)
                _live.remove(self)
        return self.rc is not None

    def text(self):
        self.out.seek(0)
        return self.out.read().decode(errors="replace")

    def complaint(self):
        self.err.seek(0)
        lines = (self.err.read().decode(errors="replace") + "\n").strip().splitlines()
        return lines[-1][:200] if lines else "no message"

    def wait(self, seconds):
        """Waits for a successful end; otherwise raises Failed."""
        end = time.monotonic() + seconds
        while not self.done():
            if time.monotonic() > end:
                self.stop()
                raise Failed(f"{self.name} was not done after {seconds:.0f} s: {self.complaint()}")
            time.sleep(0.002)
        if self.rc:
            raise Failed(f"{self.name} exited with {self.rc}: {self.complaint()}")
        return self

    def stop(self):
        """Ends it: SIGTERM first, then SIGKILL."""
        for sig, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            if self.done():
                return
            os.kill(self.popen.pid, sig)
            end = time.monotonic() + seconds
            while not self.done() and time.monotonic() < end:
                time.sleep(0.002)


def stop_all():
    for process in list(_live):
        process.stop()


def await_port(kind, port, process, seconds=8.0):
    """Waits until a port has a listener, without a connection, since some servers accept one client
    only."""
    wanted, end = f":{port:04X}", time.monotonic() + seconds
    while time.monotonic() < end:
        for table in (f"/proc/net/{kind}", f"/proc/net/{kind}6"):
            try:
                rows = [line.split() for line in open(table)][1:]
            except OSError:
                continue
            if any(row[1].endswith(wanted) and (kind == "udp" or row[3] == "0A") for row in rows):
                return
        if process.done():
            raise Failed(f"{process.name} exited with {process.rc}: {process.complaint()}")
        time.sleep(0.005)
    raise Failed(f"{process.name} does not listen on port {port}")


def place_helper(server, client, server_core, client_core):
    """Moves a server's helper thread to another core, the client's if need be: the thread that
    watches memory never leaves its core."""
    cores_left = os.sched_getaffinity(0) - {server_core, client_core} or {client_core}
    tasks = f"/proc/{server.popen.pid}/task/"
    while not client.done() and not server.done():
        for task in os.listdir(tasks):
            try:
                if open(tasks + task + "/comm").read().strip() == "gdrc-helper":
                    return os.sched_setaffinity(int(task), cores_left)
            except OSError:
                pass
        time.sleep(0.001)


def pair(
    server, client, port, kind="tcp", seconds=15.0, server_ends=True, env=None, one_core=False,
    helper=False,
):
    """Runs a server and one client, each on its core, or both on one. Returns the client's process.

    `helper`: moves the server's helper thread to another core."""
    server_core, client_core = cores()
    if one_core:
        client_core = server_core
    first = Process(server, server_core, env)
    try:
        await_port(kind, port, first)
        second = Process(client, client_core, env)
        if helper:
            place_helper(first, second, server_core, client_core)
        second.wait(seconds)
        if server_ends:
            first.wait(5.0)
        return second
    finally:
        first.stop()
