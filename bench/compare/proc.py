# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processes of the comparison: pinned to a core, limited in time, with their CPU time, and killed
by their own pid only."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time

_live = []
_nice = 0
_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """A program failed in its measurement; the text is the reason."""


def _distinct_cores():
    """One CPU of each core, and all CPUs."""
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
    return distinct, mine


def cores():
    """A core for the server and one for the client; the same one if there is no second."""
    distinct, mine = _distinct_cores()
    best = distinct if len(distinct) > 1 else mine
    return best[0], best[1 % len(best)]


def third_core():
    """A core besides those of `cores`; None: there is none."""
    distinct, _ = _distinct_cores()
    return distinct[2] if len(distinct) > 2 else None


def set_nice(nice):
    """All programs that begin from now on have this priority; root may choose one below 0."""
    global _nice
    _nice = nice


def _prepare(core):
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if _nice:
        os.setpriority(os.PRIO_PROCESS, 0, _nice)
    if core is not None:
        os.sched_setaffinity(0, {core})


class Process:
    """A running program; its output goes to files, so that nothing has to read it meanwhile. It
    ends with this one, even if this one is killed. Without a core it runs on any."""

    def __init__(self, command, core, env=None, stdin=None, stdout=None):
        self.name = os.path.basename(command[0])
        self.out, self.err = stdout or tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.begun = time.monotonic()
        self.popen = subprocess.Popen(
            command, stdin=stdin or subprocess.DEVNULL, stdout=self.out, stderr=self.err,
            env=dict(os.environ, **(env or {})), preexec_fn=lambda: _prepare(core))
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

    def said(self):
        """What it has printed so far, on both outputs; it may go on."""
        return "".join(os.pread(f.fileno(), 1 << 20, 0).decode(errors="replace")
                       for f in (self.out, self.err))

    def complaint(self):
        self.err.seek(0)
        lines = (self.err.read().decode(errors="replace") + "\n").strip().splitlines()
        return " ".join(line.strip() for line in lines[-2:])[:300] if lines else "no message"

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

    def stop(self, first=signal.SIGTERM):
        """Ends it: by a friendly signal first, then by SIGKILL."""
        for sig, seconds in ((first, 2.0), (signal.SIGKILL, 5.0)):
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
    only. It looks into the network that the process is in."""
    wanted, end = f":{port:04X}", time.monotonic() + seconds
    while time.monotonic() < end:
        for table in (f"/proc/{process.popen.pid}/net/{name}" for name in (kind, kind + "6")):
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
    helper=False, pinned=True,
):
    """Runs a server and one client, each on its core, or both on one, or (not `pinned`, for
    programs of several threads) both on any. Returns the client's process.

    `helper`: moves the server's helper thread to another core."""
    server_core, client_core = cores()
    if one_core:
        client_core = server_core
    if not pinned:
        server_core = client_core = None
    first = Process(server, server_core, env)
    try:
        await_port(kind, port, first)
        second = Process(client, client_core, env)
        if helper:
            place_helper(first, second, server_core, client_core)
        try:
            second.wait(seconds)
        except Failed as failed:
            first.stop()
            raise Failed(f"{failed}; {first.name}: {first.complaint()}") from None
        if server_ends:
            first.wait(5.0)
        return second
    finally:
        first.stop()
