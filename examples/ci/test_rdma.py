"""The project's tests: the program alone, and a tool of libibverbs between two devices. The
fixtures come with the wheel of gdrcore."""

import shutil
import time

import pytest

PING_PONG = ["ibv_rc_pingpong", "-g", "0", "-c"]


def test_the_program_registers_memory(rdma_device):
    assert rdma_device.run(["./register"]).startswith("gdrc0: key 0x")


@pytest.mark.rdma
@pytest.mark.skipif(not shutil.which("ibv_rc_pingpong"), reason="no ibverbs-utils")
def test_two_devices_exchange_checked_messages(rdma_pair):
    a, b = rdma_pair
    server = a.start(PING_PONG)
    for _ in range(100):
        client = b.start([*PING_PONG, "localhost"])
        client.wait(60)
        if client.returncode == 0 or server.poll() is not None:
            break
        time.sleep(0.1)  # the server does not listen yet
    assert "iters in" in b.finish(client)
    told = a.finish(server)
    assert "iters in" in told and "invalid data" not in told
