// NCCL's net_ib transport by its table, `ncclNetIb`, from memory of the host, every byte checked:
// nccl FOLDER RANK. The two ranks find each other in FOLDER. NCCL's sources are built beside this;
// what they want of CUDA and of NCCL's other parts is here. Exit code 0: all was as it should be.
#include <nccl.h>
#include <net.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

// No GPU.
extern "C" cudaError_t CUDARTAPI cudaGetDevice(int *)
{
    return cudaErrorNoDevice;
}

// NCCL's settings, without its plugins.
void ncclInitEnv() {}

bool ncclEnvPluginInitialized()
{
    return true;
}

const char *ncclEnvPluginGetEnv(const char *name)
{
    return std::getenv(name);
}

namespace {

constexpr size_t MOST = 16 << 20;
constexpr int AT_ONCE = 4, GROUP = 8;
constexpr unsigned char UNTOUCHED = 0xee;

int own;

[[noreturn]] void fail(const char *what, int code = 0)
{
    std::fprintf(stderr, "rank %d: %s: %d\n", own, what, code);
    std::exit(1);
}

void must(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess)
        fail(what, result);
}

// A side of a connection, with a request under way for each of its places.
struct Side {
    void *comm = nullptr, *region = nullptr;
    std::vector<unsigned char> memory = std::vector<unsigned char>(MOST);
    std::vector<void *> requests;

    void take(void *of, const char *what)
    {
        comm = of;
        must(ncclNetIb.regMr(comm, memory.data(), memory.size(), NCCL_PTR_HOST, &region), what);
    }
};

Side out, in;

// What a rank sends, at a place of a message.
unsigned char value(int rank, int message, size_t at)
{
    return (unsigned char)((at * 2654435761u >> 13) + at + (size_t)message * 37 +
                           (size_t)rank * 101);
}

// Whether a request is done; then `sizes` has what came.
bool done(void *&request, int *sizes)
{
    int is = 0;
    must(ncclNetIb.test(request, &is, sizes), "test");
    if (is)
        request = nullptr;
    return is;
}

void send(size_t at, size_t size, int tag, void *&request)
{
    if (!request)
        must(ncclNetIb.isend(out.comm, out.memory.data() + at, size, tag, out.region, nullptr,
                             &request),
             "isend");
}

// A receive of `n` messages, `step` bytes one behind the other.
void receive(size_t at, size_t step, size_t size, int n, int tag, void *&request)
{
    void *data[GROUP], *regions[GROUP];
    size_t sizes[GROUP];
    int tags[GROUP];
    for (int i = 0; i < n; i++)
        data[i] = in.memory.data() + at + i * step, regions[i] = in.region, sizes[i] = size,
        tags[i] = tag + i;
    must(ncclNetIb.irecv(in.comm, n, data, sizes, tags, regions, nullptr, &request), "irecv");
}

void flush(size_t at, int size)
{
    void *data = in.memory.data() + at, *request = nullptr;
    must(ncclNetIb.iflush(in.comm, 1, &data, &size, &in.region, &request), "iflush");
    while (request && !done(request, nullptr))
        std::this_thread::yield();
}

// `count` messages of `size` bytes each way, received in groups of `n`, into room for `room` bytes;
// each rank sends and receives at once.
void exchange(size_t size, size_t room, int count, int n, int message)
{
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < size; at++)
            out.memory[i * room + at] = value(own, message + i, at);
    std::fill(in.memory.begin(), in.memory.begin() + count * room, UNTOUCHED);
    std::vector<void *> sends(count), receives(count / n);
    std::vector<bool> sent(count), received(count / n);
    for (int i = 0; i < count / n; i++) {
        receive(i * n * room, room, room, n, message + i * n, receives[i]);
        if (!receives[i])
            fail("irecv: no request");
    }
    int left = count + count / n, begun = 0;
    while (left > 0) {
        // Sends of one group may begin in any order, those of two may not.
        for (int i = 0; i < count; i++) {
            if (!sent[i] && !sends[i] && i / n == begun / n) {
                // Backwards within a group.
                int which = i / n * n + n - 1 - i % n;
                send(which * room, size, message + which, sends[i]);
                begun += sends[i] != nullptr;
            }
            if (sends[i] && done(sends[i], nullptr))
                sent[i] = true, left--;
        }
        for (int i = 0; i < count / n; i++) {
            int sizes[GROUP] = {};
            if (received[i] || !done(receives[i], sizes))
                continue;
            received[i] = true, left--;
            for (int k = 0; k < n; k++)
                if ((size_t)sizes[k] != size)
                    fail("bytes received", sizes[k]);
        }
        std::this_thread::yield();
    }
    flush(0, (int)size);
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < room; at++)
            if (in.memory[i * room + at] !=
                (at < size ? value(1 - own, message + i, at) : UNTOUCHED)) {
                std::fprintf(stderr, "rank %d: %zu bytes, message %d of %d: wrong at %zu\n", own,
                             size, i, count, at);
                std::exit(1);
            }
}

// What the other rank has written below a name, once it is there whole.
void from_other(const std::string &folder, char *bytes, size_t n)
{
    for (int i = 0; i < 600; i++) {
        std::ifstream file(folder + "/" + std::to_string(1 - own), std::ios::binary);
        if (file.read(bytes, n))
            return;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    fail("the other rank did not come");
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        std::fprintf(stderr, "usage: nccl FOLDER RANK\n");
        return 2;
    }
    std::string folder = argv[1];
    own = std::atoi(argv[2]);

    void *context = nullptr, *listener = nullptr;
    ncclNetCommConfig_t config = {};
    config.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF;
    must(ncclNetIb.init(&context, 0, &config, nullptr, nullptr), "init");
    int devices = 0;
    must(ncclNetIb.devices(&devices), "devices");
    if (devices < 1)
        fail("devices", devices);
    // Of two one, which uses both.
    int device = 0;
    if (devices > 1) {
        ncclNetVDeviceProps_t both = {2, {0, 1}};
        must(ncclNetIb.makeVDevice(&device, &both), "makeVDevice");
    }
    ncclNetProperties_t properties = {};
    must(ncclNetIb.getProperties(device, &properties), "getProperties");
    std::printf("%s: %s, port %d, %d Mb/s, pointers %d, %d receives at once\n", properties.name,
                properties.pciPath, properties.port, properties.speed, properties.ptrSupport,
                properties.maxRecvs);
    if (!(properties.ptrSupport & NCCL_PTR_HOST) || properties.maxRecvs < GROUP)
        fail("properties", properties.maxRecvs);

    ncclNetHandle_t handle = {};
    must(ncclNetIb.listen(context, device, handle, &listener), "listen");
    std::ofstream(folder + "/" + std::to_string(own), std::ios::binary)
        .write(handle, sizeof handle);
    from_other(folder, handle, sizeof handle);
    void *sender = nullptr, *receiver = nullptr;
    while (!sender || !receiver) {
        if (!sender)
            must(ncclNetIb.connect(context, device, handle, &sender, nullptr), "connect");
        if (!receiver)
            must(ncclNetIb.accept(listener, &receiver, nullptr), "accept");
        std::this_thread::yield();
    }
    out.take(sender, "regMr of a sender");
    in.take(receiver, "regMr of a receiver");

    int message = 0;
    for (size_t size : {0, 1, 8, 9, 64, 1000, 4096, 65536, 100003, 1 << 20, 4 << 20})
        for (int round = 0; round < 8; round++, message += GROUP)
            exchange(size, size ? size : 8, AT_ONCE, 1, message);
    for (int round = 0; round < 4; round++, message += GROUP)
        exchange(MOST, MOST, 1, 1, message);
    // Into more room than they need, and several by one receive.
    for (size_t size : {8, 5000, 500000}) {
        exchange(size, 2 * size, AT_ONCE, 1, message), message += GROUP;
        for (int round = 0; round < 8; round++, message += GROUP)
            exchange(size, size, 2 * GROUP, GROUP, message);
    }

    must(ncclNetIb.deregMr(out.comm, out.region), "deregMr");
    must(ncclNetIb.deregMr(in.comm, in.region), "deregMr");
    must(ncclNetIb.closeSend(out.comm), "closeSend");
    must(ncclNetIb.closeRecv(in.comm), "closeRecv");
    must(ncclNetIb.closeListen(listener), "closeListen");
    must(ncclNetIb.finalize(context), "finalize");
    std::printf("rank %d: every byte was right\n", own);
    return 0;
}
