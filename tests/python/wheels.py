"""Libraries distributed as Python wheels, between two processes on libibverbs: wheels.py
nixl|mooncake target|initiator ADDRESS PORT

The initiator writes a block into the target's memory and reads another one from it, many times;
both compare every byte. The libraries' own metadata goes over a TCP socket of this program. """
import ctypes
import importlib
import pickle
import random
import socket
import struct
import sys
import time

SIZE = 1 << 20
TIMES = 30


class Memory:
    """Two blocks: the first is written by the initiator, the second is read by it."""

    def __init__(self):
        self.bytes = ctypes.create_string_buffer(2 * SIZE)
        self.at = ctypes.addressof(self.bytes)

    def put(self, block, data):
        ctypes.memmove(self.at + block * SIZE, data, SIZE)

    def get(self, block):
        return ctypes.string_at(self.at + block * SIZE, SIZE)


class Nixl:
    """NIXL over UCX. The wheel's module name contains the release of CUDA."""

    def __init__(self, role, address, memory):
        for name in ["nixl", "nixl_cu12", "nixl_cu13"]:
            try:
                api = importlib.import_module(name + "._api")
                break
            except ImportError:
                pass
        else:
            sys.exit("no nixl")
        self.agent = api.nixl_agent(role, api.nixl_agent_config(backends=["UCX"]))
        assert self.agent.register_memory([(memory.at, 2 * SIZE, 0, "")], "DRAM") is not None

    def describe(self):
        return self.agent.get_agent_metadata()

    def meet(self, other):
        name = self.agent.add_remote_agent(other)
        self.other = name.decode() if isinstance(name, bytes) else name

    def move(self, operation, ours, theirs):
        local = self.agent.get_xfer_descs([(ours, SIZE, 0)], "DRAM")
        far = self.agent.get_xfer_descs([(theirs, SIZE, 0)], "DRAM")
        handle = self.agent.initialize_xfer(operation, local, far, self.other)
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        assert state == "DONE", state
        self.agent.release_xfer_handle(handle)


class Mooncake:
    """Mooncake's transfer engine over its RDMA transport, without a metadata server."""

    def __init__(self, role, address, memory):
        from mooncake.engine import TransferEngine

        self.address = address
        self.engine = TransferEngine()
        assert self.engine.initialize(address, "P2PHANDSHAKE", "rdma", "") == 0
        assert self.engine.register_memory(memory.at, 2 * SIZE) == 0

    def describe(self):
        return f"{self.address}:{self.engine.get_rpc_port()}"

    def meet(self, other):
        self.other = other

    def move(self, operation, ours, theirs):
        call = {"WRITE": self.engine.transfer_sync_write, "READ": self.engine.transfer_sync_read}[
            operation
        ]
        assert call(self.other, ours, theirs, SIZE) == 0


def pattern(seed):
    return random.Random(seed).randbytes(SIZE)


def send(s, value):
    data = pickle.dumps(value)
    s.sendall(struct.pack("!I", len(data)) + data)


def receive(s):
    def exactly(n):
        data = b""
        while len(data) < n:
            more = s.recv(n - len(data))
            if not more:
                sys.exit("the other side has ended")
            data += more
        return data

    return pickle.loads(exactly(struct.unpack("!I", exactly(4))[0]))


def target(library, memory, port):
    with socket.create_server(("127.0.0.1", port)) as listener:
        s, _ = listener.accept()
    send(s, (library.describe(), memory.at))
    library.meet(receive(s))
    for turn in range(TIMES):
        memory.put(0, bytes(SIZE))
        memory.put(1, pattern(1000 + turn))
        send(s, turn)
        assert receive(s) == turn
        assert memory.get(0) == pattern(turn), f"wrong bytes of the WRITE in turn {turn}"
    send(s, "end")


def initiator(library, memory, port):
    while True:
        try:
            s = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    metadata, there = receive(s)
    send(s, library.describe())
    library.meet(metadata)
    for turn in range(TIMES):
        assert receive(s) == turn
        memory.put(0, pattern(turn))
        memory.put(1, bytes(SIZE))
        library.move("WRITE", memory.at, there)
        library.move("READ", memory.at + SIZE, there + SIZE)
        assert memory.get(1) == pattern(1000 + turn), f"wrong bytes of the READ in turn {turn}"
        send(s, turn)
    assert receive(s) == "end"


def main():
    name, role, address, port = sys.argv[1:]
    memory = Memory()
    library = {"nixl": Nixl, "mooncake": Mooncake}[name](role, address, memory)
    {"target": target, "initiator": initiator}[role](library, memory, int(port))
    print(f"{role}: {TIMES} blocks are right", flush=True)


if __name__ == "__main__":
    main()
