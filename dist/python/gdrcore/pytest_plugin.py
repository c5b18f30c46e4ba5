"""Fixtures for tests of RDMA programs: `rdma_device`, an address with a soft device, and
`rdma_pair`, two. Tests with the mark `rdma` are skipped, with the reason, where there is none.

When a test fails, its report has the counters and the refusals of what it ran on its devices."""

from __future__ import annotations

import itertools
import os
import subprocess
from typing import Any, Iterator, Sequence

import pytest

import gdrcore

_numbers = itertools.count()


class Device:
    """A soft device at an address of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._running: list[subprocess.Popen[str]] = []
        self._told: list[str] = []

    @property
    def env(self) -> dict[str, str]:
        """The environment in which a program uses this device."""
        return gdrcore.env(self.address)

    def start(self, command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
        """Starts a program on the device. Its standard error, where the counters are, goes to the
        report. It is killed when the test ends."""
        run = [str(gdrcore.program("gdrcore-run")), "--address", self.address, "--stats", "-v"]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
        started = subprocess.Popen([*run, "--", *command], **more)
        self._running.append(started)
        return started

    def finish(self, started: subprocess.Popen[str], timeout: float = 60) -> str:
        """Waits until a program of `start` has ended by 0; returns its output."""
        out, err = started.communicate(timeout=timeout)
        self._running.remove(started)
        self._told.append(f"{started.args!r}: exit {started.returncode}\n{out or ''}{err or ''}")
        assert started.returncode == 0, self._told[-1]
        return out

    def run(self, command: Sequence[str], timeout: float = 60, **more: Any) -> str:
        """Runs a program on the device until it has ended by 0; returns its output."""
        return self.finish(self.start(command, **more), timeout)

    def close(self) -> None:
        for started in self._running:
            started.kill()
            out, err = started.communicate()
            self._told.append(f"{started.args!r}: killed\n{out or ''}{err or ''}")
        self._running.clear()


def _missing() -> str | None:
    """Why there is no soft device here."""
    try:
        run = gdrcore.run(["true"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as e:
        return f"gdrcore-run does not run here: {e}"
    return None if run.returncode == 0 else f"gdrcore-run does not run here: {run.stderr.strip()}"


@pytest.fixture(scope="session")
def _rdma_missing() -> str | None:
    return _missing()


def _devices(request: pytest.FixtureRequest, count: int) -> Iterator[list[Device]]:
    why = request.getfixturevalue("_rdma_missing")
    if why:
        pytest.skip(why)
    made = []
    for _ in range(count):
        # Loopback addresses by process, so that workers of pytest-xdist have their own.
        n, pid = next(_numbers), os.getpid()
        made.append(Device(f"127.{64 + n // 254 % 32}.{pid % 254 + 1}.{n % 254 + 1}"))
    request.node._rdma_devices = getattr(request.node, "_rdma_devices", []) + made
    yield made
    for device in made:
        device.close()


@pytest.fixture
def rdma_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """An address of this machine with a soft device."""
    for made in _devices(request, 1):
        yield made[0]


@pytest.fixture
def rdma_pair(request: pytest.FixtureRequest) -> Iterator[tuple[Device, Device]]:
    """Two addresses of this machine, each with a soft device."""
    for made in _devices(request, 2):
        yield made[0], made[1]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rdma: needs a soft device of gdrcore, else is skipped")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("rdma"):
        why = _missing()
        if why:
            pytest.skip(why)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    result: Any = yield
    report = result.get_result()
    if report.when != "call" or not report.failed:
        return
    for device in getattr(item, "_rdma_devices", []):
        device.close()
        report.sections.append((f"rdma device {device.address}", "\n".join(device._told)))
