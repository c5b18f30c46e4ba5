# SPDX-License-Identifier: MIT OR Apache-2.0
"""FreeFlow's router with its own clients, and unmodified programs by way of ours: round trips of
4 KiB by the pingpong of libibverbs. Its sources are not part of this repository."""

import os
import re

from contestants import Ends, missing
from machine import ROOT
from proc import Failed, Process, pair
from router_places import Router, router_of, tenants
from router_rows import Remote

PORT, ROUNDS, MOST_S = 18515, 3, 240
LABELS = {
    ("theirs", "one"): "FreeFlow, one router",
    ("theirs", "two"): "FreeFlow, two routers",
    ("ours", "one"): "gdrcore, one router, relayed",
    ("ours", "remote"): "gdrcore, one router, remote mode",
    ("ours", "two"): "gdrcore, two routers",
}


def trip(text):
    found = re.search(r"= ([0-9.]+) usec/iter", text)
    if not found:
        raise Failed("ibv_uc_pingpong says no time")
    return {"median_us": float(found.group(1))}


class FreeFlow:
    """`bench` knows the two hosts."""

    def __init__(self, bench):
        self.bench = bench

    def theirs(self, results):
        """Round trips by where the clients are. Some of its programs may fail, others count."""
        script = os.path.join(ROOT, "scripts/freeflow.sh")
        process = Process([script], None, {"MEASURE": str(ROUNDS)})
        try:
            process.wait(MOST_S)
        except Failed as error:
            said = " ".join(process.text().splitlines()[-2:])
            results.skip(f"a round of FreeFlow's router: {error}: {said}")
        lines = [line.split() for line in process.text().splitlines()]
        return [(line[1], float(line[2])) for line in lines if line[:1] == ["measured:"]]

    def ours(self, ends, sockets):
        """The same program as Debian has it."""
        commands = [
            [*into, "env", f"GDRC_ROUTER={socket}", self.bench.launcher, "ibv_uc_pingpong", "-g",
             "0", "-n", "2000"]
            for into, socket in zip(ends.into, sockets)
        ]
        return trip(pair(commands[0], commands[1] + [ends.server], PORT).text())

    def on_one_host(self, policy='[router]\nlocal = "relay"\n' + tenants(["red", "blue"])):
        router = Router(self.bench.bin, policy)
        try:
            return self.ours(Ends(), [f"{router.dir}/{name}.gdrc" for name in ("red", "blue")])
        finally:
            router.stop()

    def by_remote_mode(self):
        return self.on_one_host(Remote.POLICY)

    def on_two_hosts(self):
        routers = []
        try:
            for n in range(2):
                routers.append(router_of(self.bench.bin, self.bench.hosts, n))
            names = zip(routers, ("red", "blue"))
            sockets = [f"{router.dir}/{name}.gdrc" for router, name in names]
            return self.ours(self.bench.ends, sockets)
        finally:
            for router in routers:
                router.stop()

    def add_to(self, results):
        """Measures all of it; what is missing is named."""
        if not os.environ.get("FREEFLOW_SRC"):
            results.skip("FREEFLOW_SRC does not say where FreeFlow's sources are: its router")
            return
        if missing("ibv_uc_pingpong"):
            results.skip("ibv_uc_pingpong is not installed: FreeFlow's router")
            return
        print("FreeFlow", flush=True)
        try:
            for turn in range(ROUNDS):
                for where, measure in (
                    ("one", self.on_one_host),
                    ("remote", self.by_remote_mode),
                    ("two", self.on_two_hosts),
                ):
                    label = LABELS["ours", where]
                    results.add("freeflow", f"ours {where}", label, measure(), turn)
            for where, us in self.theirs(results):
                label = LABELS["theirs", where]
                results.add("freeflow", f"theirs {where}", label, {"median_us": us})
        except (Failed, ValueError, OSError) as error:
            results.skip(f"FreeFlow's router: {error}")
