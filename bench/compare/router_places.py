# SPDX-License-Identifier: MIT OR Apache-2.0
"""Routers, their tenants' sockets, and two hosts made of network namespaces."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from contestants import Ends
from proc import Failed, Process, cores, third_core

PATIENCE_S = 10.0
_open = []


def until(what, is_so, process):
    """Waits until something is so, as long as a process lives."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if process.done() or time.monotonic() > end:
            raise Failed(f"{what}: {process.name} {process.rc}: {process.complaint()}")
        time.sleep(0.002)


class Router:
    """A running router. Its folder has the sockets of its tenants, and goes with it."""

    def __init__(self, bin_dir, policy, core=None, into=(), more=None, options=()):
        """`policy`: text in which DIR stands for the folder; `more`: further files."""
        self.bin, self.core, self.into, self.options = bin_dir, core, into, options
        # Paths of sockets are short.
        self.dir = tempfile.mkdtemp(prefix="gdrc-r-", dir="/tmp")
        for name, text in {"policy.toml": policy, **(more or {})}.items():
            with open(os.path.join(self.dir, name), "w") as file:
                file.write(text.replace("DIR", self.dir))
        self.admin = os.path.join(self.dir, "admin")
        self.process = None
        _open.append(self)
        self.start()

    def start(self):
        command = [
            *self.into, os.path.join(self.bin, "gdrcore-routerd"), "-v", "--firewall", "off",
            *self.options, "--admin", self.admin, os.path.join(self.dir, "policy.toml"),
        ]
        self.process = Process(command, self.core)
        until("the router", lambda: "ready" in self.process.said(), self.process)
        until("the router's worker", lambda: self.worker() is not None, self.process)

    @property
    def pid(self):
        return self.process.popen.pid

    def device(self, tenant):
        return f"router:{self.dir}/{tenant}.gdrc"

    def ask(self, *words):
        """The JSON objects that it answers with."""
        command = [os.path.join(self.bin, "gdrcore-routerctl"), "--socket", self.admin, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise Failed(f"gdrcore-routerctl: {done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def frames(self):
        """Frames that its relay has taken from all tenants."""
        return sum((t["relay"] or {}).get("tx_packets", 0) for t in self.ask("tenants"))

    def worker(self):
        """The folder of the relay's thread in /proc; None: there is none yet."""
        tasks = f"/proc/{self.pid}/task/"
        is_worker = lambda task: open(tasks + task + "/comm").read().strip() == "relay"
        return next((tasks + task for task in os.listdir(tasks) if is_worker(task)), None)

    def worker_ns(self):
        """Nanoseconds that the relay's thread has run."""
        return int(open(self.worker() + "/schedstat").read().split()[0])

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        while not self.process.done():
            time.sleep(0.0005)

    def stop(self):
        if self in _open:
            _open.remove(self)
            if self.process:
                # At once: an orderly end is of no use here.
                self.process.stop(signal.SIGINT)
            shutil.rmtree(self.dir, ignore_errors=True)


def stop_all_routers():
    for router in list(_open):
        router.stop()


def tenants(names, **with_what):
    """The tables of these tenants, each with a socket of its own; `with_what`: lines of some."""
    return "".join(
        f'[tenant.{name}]\nlisten = "DIR/{name}.gdrc"\n{with_what.get(name, "")}\n'
        for name in names
    )


class TwoHosts:
    """Two network namespaces and an Ethernet between them, in a user namespace of their own: no
    root is needed, and all goes when the processes that hold them end."""

    # Packets of 9000 bytes carry a path MTU of 4096.
    MTU = "9000"
    ADDRESSES = ("192.0.2.1", "192.0.2.2")

    def __init__(self):
        self.outer = Process(["unshare", "-Urnm", "--", "sleep", "3600"], None)
        until("namespaces", lambda: self.sleeps(self.outer), self.outer)
        into_outer = self.into_space(self.outer.popen.pid)
        # UCX looks for interfaces in /sys, which is to show those of the namespace.
        hold = ["unshare", "-nm", "--", "sh", "-c", "mount -t sysfs none /sys; exec sleep 3600"]
        self.hosts = [Process([*into_outer, *hold], None) for _ in range(2)]
        for host in self.hosts:
            until("namespaces", lambda host=host: self.sleeps(host), host)
        a, b = (str(host.popen.pid) for host in self.hosts)
        self.set_up(
            *into_outer, "ip", "link", "add", "gdrc0", "mtu", self.MTU, "netns", a, "type", "veth",
            "peer", "name", "gdrc0", "mtu", self.MTU, "netns", b,
        )
        for host, address in zip(self.hosts, self.ADDRESSES):
            ip = [*self.into_space(host.popen.pid), "ip"]
            self.set_up(*ip, "link", "set", "lo", "up")
            self.set_up(*ip, "addr", "add", address + "/24", "dev", "gdrc0")
            self.set_up(*ip, "link", "set", "gdrc0", "up")
        # Programs look only for interfaces that are up, which the kernel says a little later.
        for host in self.hosts:
            state = ["cat", "/sys/class/net/gdrc0/operstate"]
            look = [*self.into_space(host.popen.pid), *state]
            is_up = lambda look=look: subprocess.run(
                look, capture_output=True, text=True, timeout=PATIENCE_S
            ).stdout.strip() == "up"
            until("the link", is_up, host)

    @staticmethod
    def sleeps(process):
        try:
            return open(f"/proc/{process.popen.pid}/comm").read().strip() == "sleep"
        except OSError:
            return False

    @staticmethod
    def into_space(pid):
        """What a command begins with to run there: nsenter becomes the command."""
        return ["nsenter", "-t", str(pid), "--preserve-credentials", "-U", "-n", "-m", "--"]

    @staticmethod
    def set_up(*command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")

    def into(self):
        return tuple(self.into_space(host.popen.pid) for host in self.hosts)

    def ends(self):
        """The server is on the first host, the client on the second."""
        return Ends(*self.ADDRESSES, "gdrc0", self.into())


MAP = """
[a]
address = "192.0.2.1"
[a.tenant.red]
vip = "10.99.0.1"
blocks = [748, 200]
[b]
address = "192.0.2.2"
[b.tenant.blue]
vip = "10.99.0.2"
blocks = [748, 200]
"""


def router_of(bin_dir, hosts, n):
    """The router of one of two hosts; the tenant of the first is red, of the second blue. Each host
    has a core."""
    name, tenant, other = (("a", "red", "blue"), ("b", "blue", "red"))[n]
    policy = (
        f'[host]\nid = "{name}"\naddress = "{hosts.ADDRESSES[n]}"\nmap = "DIR/map.toml"\n'
        + tenants([tenant])
    )
    return Router(bin_dir, policy, cores_of_hosts()[n], hosts.into()[n], {"map.toml": MAP})


def cores_of_hosts():
    """Where the routers of two hosts run: with four cores or more on any, else each beside its
    tenant."""
    return (None, None) if (os.cpu_count() or 1) >= 4 else cores()


def core_of_router():
    """Where a router between a server and a client runs: on a third core if there is one, else on
    any."""
    return third_core()
