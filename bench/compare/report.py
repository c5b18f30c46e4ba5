# SPDX-License-Identifier: MIT OR Apache-2.0
"""The report of a comparison: medians, ratios, goals, and the page of results."""

import itertools
import statistics
import textwrap

from contestants import OURS_SHM, OURS_UDP, UCX_SHM_KEYS, UCX_TCP_KEYS


def wrapped(page):
    """The page with paragraphs and items of lists wrapped at 100 columns; tables stay as is."""
    keep = lambda line: not line or line[0] in "|#!-"
    whole = {"break_long_words": False, "break_on_hyphens": False}
    fill = lambda text, indent="": textwrap.fill(text, 100, subsequent_indent=indent, **whole)
    parts = []
    for as_is, lines in itertools.groupby(page.splitlines(), keep):
        if as_is:
            parts += [fill(line, "  ") if line.startswith("- ") else line for line in lines]
        else:
            parts.append(fill("\n".join(lines)))
    return "\n".join(parts) + "\n" * page.endswith("\n")


def median(rounds, field):
    values = [r[field] for r in rounds if field in r]
    return statistics.median(values) if values else None


def merged(rounds):
    """One histogram of all rounds."""
    total = {}
    for r in rounds:
        for end, count in r.get("histogram", []):
            total[end] = total.get(end, 0) + count
    return total


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def over(a, b):
    return a / b if a and b else None


def table(head, rows):
    """A Markdown table that is readable as text, too."""
    cells = [head] + rows
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    line = lambda row: (
        "| "
        + " | ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))
        )
        + " |"
    )
    rule = (
        "|"
        + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
        + "|"
    )
    return "\n".join([line(head), rule] + [line(row) for row in rows])


GOALS = ["goal", "is", "wanted", "reached"]


def goal_row(what, value, bound, at_least, digits=2):
    """A row of the table of goals."""
    good = None if value is None else value >= bound if at_least else value <= bound
    return [
        what, number(value, digits), ("at least " if at_least else "at most ") + f"{bound:g}",
        "not measured" if good is None else "yes" if good else "no",
    ]


class Results:
    """Rounds by phase and contestant."""

    def __init__(self):
        self.rounds, self.labels, self.skipped = {}, {}, []

    def add(self, phase, key, label, result, turn=0):
        self.labels[phase, key] = label
        self.rounds.setdefault((phase, key), []).append({**result, "turn": turn})

    def skip(self, what):
        if what not in self.skipped:
            self.skipped.append(what)

    def get(self, phase, key, field):
        return median(self.rounds.get((phase, key), []), field)

    def keys(self, phase):
        """Without those of a peer's older release whose figure is that of the newest, within a
        tenth."""
        return [key for p, key in self.labels if p == phase and not self._same(phase, key)]

    def _same(self, phase, key):
        newest = key.removesuffix(" old")
        figures = ("median_us", "MB_per_s", "Mmsg_per_s")
        ratio = newest != key and self.ratio(phase, key, newest, *figures)
        return ratio and 0.9 < ratio < 1.1

    def typical(self, key, phase="lat"):
        """Median latency, or the mean of a program that reports only that."""
        return self.get(phase, key, "median_us") or self.get(phase, key, "mean_us")

    def ratio(self, phase, ours, theirs, *fields):
        """The median over the rounds of one program's figure over another's in the same round, for
        the first field that each has. On a machine whose speed changes from minute to minute both
        change together."""
        def by_turn(key):
            figures = {}
            for r in self.rounds.get((phase, key), []):
                value = next((r[field] for field in fields if r.get(field)), None)
                if value:
                    figures[r["turn"]] = value
            return figures
        a, b = by_turn(ours), by_turn(theirs)
        both = [a[turn] / b[turn] for turn in a if turn in b]
        return statistics.median(both) if both else None

    def latency_table(self, phase="lat", what="half round trip, us", base="send"):
        """`base`: the row that all are compared with."""
        send, rows = self.typical(base, phase), []
        for key in self.keys(phase):
            mean = self.get(phase, key, "mean_us")
            rows.append(
                [
                    self.labels[phase, key], number(self.get(phase, key, "min_us")),
                    f"{mean:.2f} (mean)" if mean else number(self.typical(key, phase)),
                    number(self.get(phase, key, "p99_us")), number(self.get(phase, key, "p999_us")),
                    number(over(self.typical(key, phase), send)),
                ]
            )
        beside = f"/ {self.labels.get((phase, base), base)}" if base != "send" else "/ gdrcore SEND"
        return table([what, "min", "median", "p99", "p99.9", beside], rows)

    def bandwidth_table(self, phase="bw", what="1 MiB messages, MB/s", base="write"):
        """`base`: the row that is compared with all."""
        write, rows = self.get(phase, base, "MB_per_s"), []
        for key in self.keys(phase):
            values = [r["MB_per_s"] for r in self.rounds[phase, key]]
            lost = sum(r.get("lost", 0) for r in self.rounds[phase, key])
            rows.append(
                [
                    self.labels[phase, key] + (f" ({lost} bytes lost)" if lost else ""),
                    f"{statistics.median(values):.0f}", f"{min(values):.0f}", f"{max(values):.0f}",
                    number(over(write, statistics.median(values))),
                ]
            )
        beside = self.labels.get((phase, base), base) if base != "write" else "gdrcore WRITE"
        return table([what, "median", "least", "most", beside + " /"], rows)

    def rate_table(self, phase="threads", what="million messages a second, of all threads"):
        rows = []
        for key in self.keys(phase):
            values = [r["Mmsg_per_s"] for r in self.rounds[phase, key]]
            rows.append(
                [
                    self.labels[phase, key], number(statistics.median(values)),
                    number(min(values)), number(max(values)),
                ]
            )
        return table([what, "median", "least", "most"], rows)

    def curve(self, key):
        """A figure a size, in MB/s."""
        return {size: self.get(("sizes", size), key, "MB_per_s") for size in
                sorted(phase[1] for phase, k in self.rounds if k == key and phase[0] == "sizes")}

    def behind(self, ours, theirs):
        """For each size, how many times as fast as our best way the peer's best is."""
        best = lambda keys, size: max((self.curve(key).get(size) or 0 for key in keys), default=0)
        sizes = sorted({size for key in ours + theirs for size in self.curve(key)})
        return {size: over(best(theirs, size), best(ours, size)) for size in sizes}

    def sizes_table(self, ours, theirs, others=()):
        """Rows of sizes; the last column has the peer's best over ours."""
        keys = [key for key in ours + others + theirs if self.curve(key)]
        labels = {key: label for (phase, key), label in self.labels.items() if phase[0] == "sizes"}
        behind = self.behind(ours, theirs)
        return table(
            ["bytes, MB/s"] + [labels[key] for key in keys] + ["UCX's best / ours"],
            [
                [str(size)]
                + [number(self.curve(key).get(size), 0 if size > 64 else 1) for key in keys]
                + [number(ratio)]
                for size, ratio in behind.items()
            ],
        )

    def file_table(self, mib):
        rows, ours = [], self.get("file", "gdrcore", "wall")
        for key in self.keys("file"):
            wall, calls = self.get("file", key, "wall"), self.get("file calls", key, "per_gib")
            rows.append(
                [
                    self.labels["file", key], number(wall), number(self.get("file", key, "user")),
                    number(self.get("file", key, "sys")), number(over(mib * 1.048576, wall), 0),
                    "-" if calls is None else f"{calls:.0f}", number(over(wall, ours)),
                ]
            )
        return table(
            [
                f"{mib} MiB into tmpfs", "wall s", "user s", "sys s", "MB/s", "calls per GiB",
                "wall / gdrcore",
            ],
            rows,
        )

    def goals(self):
        """The goals of docs and issues against the measured values."""
        rows = []
        goal = lambda *what: rows.append(goal_row(*what))
        lat = lambda ours, theirs, phase="lat": self.ratio(
            phase, ours, theirs, "median_us", "mean_us"
        )
        speed = lambda ours, theirs, phase="bw": self.ratio(phase, ours, theirs, "MB_per_s")
        goal("SEND 64 B / bare echo, ACK before the answer", lat("send", "ack_echo"), 1.2, False)
        goal("SEND 64 B / bare echo, ACK after the answer", lat("send", "echo_ack"), 1.2, False)
        mean = lambda theirs: self.ratio("shm", "send", theirs, "avg_us")
        goal("SEND 64 B / UCX tcp", lat("send", "ucx_tcp"), 1, False)
        goal("SEND 64 B / libfabric tcp", lat("send", "fi_tcp"), 1, False)
        goal("SEND 64 B / libfabric udp", lat("send", "fi_udp"), 1, False)
        goal("WRITE 1 MiB / bare GSO and GRO", speed("write", "bare_gso"), 0.95, True)
        goal("WRITE 1 MiB / UCX tcp, put", speed("write", "ucx_tcp"), 1.2, True)
        goal("WRITE 1 MiB / UCX tcp, tag", speed("write", "ucx_tcp_tag"), 1.2, True)
        goal("WRITE 1 MiB / iperf3", speed("write", "iperf3"), 2, True)
        goal(
            "WRITE 8 B within one context, us from post to completion", self.typical("loopback"),
            0.1, False,
        )
        goal("same host: SEND 8 B / UCX shm tag, averages", mean("ucx_tag"), 1.15, False)
        goal("same host: SEND 8 B / no library, averages", mean("floor"), 1.2, False)
        goal(
            "same host: WRITE 8 B by the ring / UCX shm put", lat("write", "ucx_put", "shm"), 1.5,
            False,
        )
        goal(
            "same host: WRITE 8 B into shared memory / UCX shm put",
            lat("write_shared", "ucx_put", "shm"), 0.9, False,
        )
        rate = lambda phase, a, b: self.ratio(phase, a, b, "Mmsg_per_s")
        goal(
            "same host: SEND 8 B, messages a second / UCX shm tag", rate("rate", "send", "ucx_tag"),
            1, True,
        )
        goal(
            "same host: WRITE 8 B into shared memory, messages a second / UCX shm put",
            rate("rate", "write_shared", "ucx_put"), 1, True,
        )
        for words, ours, theirs in (
            ("through memory", OURS_SHM, UCX_SHM_KEYS), ("over UDP", OURS_UDP, UCX_TCP_KEYS),
        ):
            ratios = self.behind(ours, theirs).values()
            most = max(ratios) if ratios and all(ratios) else None
            goal(f"sizes {words}: UCX's best / ours, most", most, 1.1, False)
        goal("same host: SEND 8 B, p99, us", self.get("shm", "send", "p99_us"), 20, False)
        goal(
            "same host: WRITE 8 B to a target that never calls progress, us",
            self.typical("watch", "shm"), 5, False,
        )
        goal(
            "same host: SEND 8 B, both on one core, us", self.typical("send_one_core", "shm"), 50,
            False,
        )
        goal(
            "same host: WRITE 1 MiB into shared memory / UCX shm tag",
            speed("write_shared", "ucx_tag", "shm bw"), 3, True,
        )
        goal(
            "same host: WRITE 1 MiB into shared memory / UCX shm put",
            speed("write_shared", "ucx_put", "shm bw"), 0.7, True,
        )
        goal(
            "same host: WRITE 64 MiB into shared memory / UCX shm tag",
            speed("write_shared_big", "ucx_tag_big", "shm bw"), 1.3, True,
        )
        goal(
            "same host: WRITE 64 MiB by the ring / UCX shm tag",
            speed("write_big", "ucx_tag_big", "shm bw"), 1.3, True,
        )
        goal(
            "same host: WRITE 1 MiB by the ring / a ring, no library",
            speed("write", "ring", "shm bw"), 0.9, True,
        )
        goal(
            "same host: WRITE 64 MiB by the ring / a ring, no library",
            speed("write_big", "ring_big", "shm bw"), 0.9, True,
        )
        goal(
            "drop-in: ib_send_lat 64 B / the C API", lat("ib_send_lat", "send", "drop-in"), 1.15,
            False,
        )
        goal(
            "drop-in: the C API's WRITE 64 KiB / ib_write_bw",
            speed("write", "ib_write_bw", "drop-in bw"), 1.15, False,
        )
        goal(
            "drop-in: the C API's SEND 64 KiB / ib_send_bw",
            speed("send", "ib_send_bw", "drop-in bw"), 1.15, False,
        )
        goal(
            "drop-in: ib_write_lat 8 B through memory, us", self.typical("ib_write_lat", "drop-in"),
            5, False,
        )
        for key, words in (
            ("loop", "WRITE 8 B within a context"),
            ("both_shm", "SEND 8 B through memory"),
            ("both_udp", "SEND 64 B over UDP"),
        ):
            two = f"{words}: two threads with an engine each / one"
            goal(two, rate("threads", f"{key} engines", f"{key} 1"), 1.9, True)
            one = f"{words}: two threads on one engine / one"
            goal(one, rate("threads", f"{key} 2", f"{key} 1"), 0.8, True)
        for key, words in (
            ("verbs_loop", "WRITE 8 B within a device"),
            ("verbs_shm", "SEND 8 B through memory"),
            ("verbs_udp", "SEND 8 B over UDP"),
        ):
            two = f"drop-in: {words}: two threads / one"
            goal(two, rate("threads", f"{key} 2", f"{key} 1"), 1.9, True)
        for key, words, theirs, who in (
            ("shm", "SEND 8 B through memory", "ucx_shm 2", "UCX shm tag"),
            ("udp", "SEND 64 B over UDP", "ucx_tcp 2", "UCX tcp tag"),
        ):
            two = f"{words}: two threads with an engine each / {who}, two workers"
            goal(two, rate("threads", f"{key} engines", theirs), 1, True)
        for ours, words in (("gdrcore", "file copy"), ("gdrcore udp", "file copy over UDP")):
            for key in ("rsync", "nc"):
                for field in ("wall", "sys"):
                    goal(
                        f"{words} / {key}, {field}", self.ratio("file", ours, key, field), 1, False
                    )
        return table(GOALS, rows)

    def page(self, facts, mib):
        parts = [
            "# Results",
            "",
            "Written by `make compare`; not by hand. One run on one machine: the contestants take "
            "turns, round by round,",
            "each side of a pair on a core of its own, and a figure is the median of the rounds. "
            "Ratios travel better than figures; those of the goals",
            "are medians over the rounds of the ratio within a round; those of sizes are of "
            "medians.",
            "",
            "\n".join(f"- {name}: {value}" for name, value in facts),
            "",
            "## Goals",
            "",
            self.goals(),
            "",
            "## Latency",
            "",
            self.latency_table(),
            "",
            "gdrcore's and the bare echoes' datagrams have the same length. libfabric's program "
            "tells the mean, and the time of a READ is there and back.",
            "",
            "![latency by percentile](latency.svg)",
            "",
            "## Bandwidth",
            "",
            self.bandwidth_table(),
            "",
            "Default socket buffers. gdrcore counts a message when its ACK is in; the bare sockets "
            "keep what fits the buffer under way.",
            "",
        ]
        if self.keys("shm"):
            parts += [
                "## Same host",
                "",
                self.latency_table("shm", "8 B through memory, half round trip, us"),
                "",
                self.bandwidth_table("shm bw", "through memory, MB/s"),
                "",
                "`floor.c` is the row without a library: one queue pair a side, posts, keys, "
                "bounds, an ACK and completions, and nothing else.",
                "",
                "Shared memory: the target's region is a memfd's (`perf --mem shared`, "
                "GDRC_MEMORY_FLAG_SHARED), which the initiator maps, as UCX's "
                "target memory is where it puts. Else it is any memory, and bytes go through a "
                "ring, or by process_vm_writev where both ends have chosen GDRC_CONFIG_CMA. The "
                "ring without a library shows what the two cores can do at that time: in a "
                "virtual machine they may share a cache or not, and change within seconds.",
                "",
            ]
        if self.keys("rate"):
            parts += [
                "## Rates and sizes",
                "",
                self.rate_table("rate", "8 B in one direction, million messages a second"),
                "",
            ]
        if self.curve("send"):
            parts += [
                self.sizes_table(OURS_SHM, UCX_SHM_KEYS),
                "",
                self.sizes_table(OURS_UDP, UCX_TCP_KEYS, ("bare_gso",)),
                "",
                "![bandwidth over size](bandwidth.svg)",
                "",
            ]
        if self.keys("drop-in"):
            parts += [
                "## The drop-in",
                "",
                "Unmodified perftest on the drop-in, and the same operation by the C API; two "
                "processes that share memory.",
                "",
                self.latency_table("drop-in", "half round trip, us"),
                "",
                self.bandwidth_table("drop-in bw", "64 KiB messages, MB/s"),
                "",
            ]
        if self.keys("threads"):
            parts += [
                "## Threads",
                "",
                self.rate_table(),
                "",
                "`perf --threads`: each thread of either end has a CQ and a queue pair of its own, "
                "on one context or (`--contexts`) with a context each. Within a context, and where "
                "it says both ends (`--both-ends`), a thread drives both ends of its pair. Else "
                "the ends are two processes, whose four threads share the cores if there are two. "
                "On the drop-in, `verbs_rate.c` does the same by verbs, in a network with two "
                "addresses. Arithmetic of processes that share nothing shows what the second core "
                "was worth in those minutes: "
                + number(self.ratio("threads", "pace 2", "pace 1", "Mmsg_per_s"))
                + " times as much as one core did.",
                "",
            ]
        if self.keys("file"):
            parts += [
                "## A file",
                "",
                self.file_table(mib),
                "",
                "Before each copy a file of its size is written there and deleted, since the host "
                "of a virtual machine may take back free memory, and to get it again costs more "
                "than a copy. CPU time is of both sides together. System calls are of both sides, "
                "by `strace -f -c` in a run of its own on a smaller file, scaled; polling makes "
                "that slower run call more often than the timed one does.",
                "",
            ]
        if self.skipped:
            parts += ["## Left out", "", "\n".join("- " + what for what in self.skipped), ""]
        return wrapped("\n".join(parts))
