# SPDX-License-Identifier: MIT OR Apache-2.0
"""A run of measurements in rounds, within a budget of time."""

import time

import contestants
import proc
import report


class Run:
    """The phases, within one time budget; `results`: where they go."""

    def __init__(self, args, results=None):
        self.args, self.results = args, results or report.Results()
        self.begun = self.end = time.monotonic()
        self.failures = 0

    def take(self, phase, entry, name="", turn=0):
        key, label, program, measure = entry
        if contestants.missing(program):
            self.results.skip(f"{program} is not installed: {label}")
            return
        if time.monotonic() > self.end:
            self.results.skip(
                f"no time left within {self.args.budget} s for every round of {label} "
                f"({phase if isinstance(phase, str) else phase[0]})"
            )
            return
        try:
            self.results.add(phase, key, label, measure(), turn)
        except (proc.Failed, ValueError, KeyError, IndexError, OSError) as error:
            self.failures += program is None
            self.results.skip(f"{label}{name} failed once: {error}")
            print(f"  failed: {label}{name}: {error}", flush=True)

    def until(self, share):
        """Budgets a phase: a slow one takes no time from earlier ones, and leaves some to later
        ones."""
        self.end = self.begun + share * self.args.budget
        return self

    def alternate(self, phases, title, rounds=None):
        """One round of all entries in order; every second round is reversed."""
        rounds = min(rounds or self.args.rounds, self.args.rounds)
        for turn in range(rounds):
            print(f"{title}, round {turn + 1} of {rounds}", flush=True)
            for phase, entries, name in phases:
                # The first round goes forward, which sets the order of the tables.
                for entry in entries if turn % 2 == 0 else entries[::-1]:
                    self.take(phase, entry, name, turn)
