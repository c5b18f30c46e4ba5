"""Fixtures for tests of RDMA programs: `rdma_device`, an address with a soft device, and
`rdma_pair`, two. Tests with the mark `rdma` are skipped, with the reason, where there is none.

When a test fails, its report has the counters and the refusals of what it ran on its devices."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
from typing import Any, Iterator, Sequence

import pytest

import gdrcore

_numbers = itertools.count()


class Device:
    """A soft device at an address of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._running: dict[subprocess.Popen[str], tuple[Any, Any]] = {}
        self._told: list[str] = []

    @property
    def env(self) -> dict[str, str]:
        """The environment in which a program uses this device."""
        return gdrcore.env(self.address)

    def start(self, command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
        """Starts a program on the device, with its output in files: one that nobody reads would
        stop at a full pipe. The report has both, the counters are in the second. It is killed
        when the test ends, with all that it has started."""
        run = [str(gdrcore.program("gdrcore-run")), "--address", self.address, "--stats", "-v"]
        files = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        more = {"stdout": files[0], "stderr": files[1], "text": True, **more}
        started = subprocess.Popen([*run, "--", *command], start_new_session=True, **more)
        self._running[started] = files
        return started

    def _end(self, started: subprocess.Popen[str], how: str) -> str:
        told = []
        for file in self._running.pop(started):
            file.seek(0)
            told.append(file.read())
            file.close()
        self._told.append(f"{started.args!r}: {how}\n{''.join(told)}")
        return told[0]

    def finish(self, started: subprocess.Popen[str], timeout: float = 60) -> str:
        """Waits until a program of `start` has ended by 0; returns its output."""
        code = started.wait(timeout=timeout)
        out = self._end(started, f"exit {code}")
        assert code == 0, self._told[-1]
        return out

    def run(self, command: Sequence[str], timeout: float = 60, **more: Any) -> str:
        """Runs a program on the device until it has ended by 0; returns its output."""
        return self.finish(self.start(command, **more), timeout)

    def close(self) -> None:
        for started in list(self._running):
            try:
                os.killpg(started.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            started.wait()
            self._end(started, "killed")


def _missing() -> str | None:
    """Why there is no soft device here."""
    try:
        devices = [str(gdrcore.program("gdrcore-devinfo")), "-d", "soft:127.0.0.1"]
        run = subprocess.run(devices, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as e:
        return f"no soft device: {e}"
    return None if run.returncode == 0 else f"no soft device: {run.stderr.strip()}"


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
