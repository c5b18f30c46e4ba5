// UCCL's engine of point-to-point transfers by its C interface, from memory of the host, every byte
// checked: uccl FOLDER target|initiator. FOLDER is where the two find each other. UCCL's sources
// are built beside this; a GPU that has no memory, and Python, which it calls for signals only, are
// here. Exit code 0: all was as it should be.
#include <uccl_engine.h>

#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

// The GPU: UCCL asks for its name, and makes streams on it.
extern "C" {
cudaError_t CUDARTAPI cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t CUDARTAPI cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t CUDARTAPI cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char *name, int size, int)
{
    std::snprintf(name, size, "0000:00:00.0");
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    return *stream = nullptr, cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaGetLastError() { return cudaSuccess; }
const char *CUDARTAPI cudaGetErrorString(cudaError_t) { return "there is no GPU"; }
cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *)
{
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
}
// Nothing of this is called for memory of the host.
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { std::abort(); }
cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *, unsigned) { std::abort(); }
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t) { std::abort(); }
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t) { std::abort(); }
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t, cudaStream_t) { std::abort(); }
cudaError_t CUDARTAPI cudaMalloc(void **, size_t) { std::abort(); }
cudaError_t CUDARTAPI cudaFree(void *) { std::abort(); }
cudaError_t CUDARTAPI cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t)
{
    std::abort();
}
cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t *, void *) { std::abort(); }
cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned) { std::abort(); }
cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void *) { std::abort(); }
CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *, size_t *, CUdeviceptr) { std::abort(); }
int PyGILState_Ensure() { std::abort(); }
void PyGILState_Release(int) { std::abort(); }
int PyErr_CheckSignals() { std::abort(); }
}

namespace {

constexpr size_t MOST = 8 << 20;
constexpr int AT_ONCE = 4;

// What the target tells the initiator.
struct Place {
    FifoItem item;
    char peer[128];
};

unsigned char value(int round, size_t at)
{
    return (unsigned char)((at * 2654435761u >> 13) + at + (size_t)round * 37);
}

void must(bool good, const char *what)
{
    if (good)
        return;
    std::fprintf(stderr, "%s\n", what);
    std::_Exit(1);
}

// Waits for what the other one puts below a name.
void read_from(const std::string &name, void *bytes, size_t n)
{
    for (int i = 0; i < 600; i++) {
        std::ifstream file(name, std::ios::binary);
        if (file.read((char *)bytes, (std::streamsize)n))
            return;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    must(false, "the other one did not come");
}

void write_to(const std::string &name, const void *bytes, size_t n)
{
    std::ofstream(name, std::ios::binary).write((const char *)bytes, (std::streamsize)n);
}

void check(const std::vector<unsigned char> &memory, size_t n, int round, const char *what)
{
    for (size_t at = 0; at < n; at++)
        if (memory[at] != value(round, at)) {
            std::fprintf(stderr, "%s of %zu bytes, round %d: wrong at %zu\n", what, n, round, at);
            std::_Exit(1);
        }
}

// The last round is over the whole memory, and stays.
constexpr int LAST = 1000;

void target(const std::string &folder, uccl_engine_t *engine, std::vector<unsigned char> &memory,
            uccl_mr_t region)
{
    Place place = {};
    char item[sizeof(FifoItem)], *name = nullptr;
    must(uccl_engine_prepare_fifo(engine, region, memory.data(), memory.size(), item) == 0,
         "prepare_fifo");
    deserialize_fifo_item(item, &place.item);
    must(uccl_engine_get_metadata(engine, &name) == 0, "get_metadata");
    std::snprintf(place.peer, sizeof place.peer, "%s", name);
    write_to(folder + "/place", &place, sizeof place);
    // Who accepts goes on to wait for another one.
    std::thread([engine] {
        char peer[64] = "";
        int gpu = -1;
        uccl_engine_accept(engine, peer, sizeof peer, &gpu);
    }).detach();
    char done;
    read_from(folder + "/done", &done, 1);
    check(memory, memory.size(), LAST, "WRITEs");
}

void initiator(const std::string &folder, uccl_engine_t *engine, std::vector<unsigned char> &memory,
               uccl_mr_t region)
{
    Place place;
    read_from(folder + "/place", &place, sizeof place);
    // ADDRESS:PORT?GPU
    std::string peer = place.peer;
    size_t colon = peer.rfind(':', peer.find('?')),
           port = std::strtoul(peer.c_str() + colon + 1, nullptr, 10);
    uccl_conn_t *connection =
        uccl_engine_connect(engine, peer.substr(0, colon).c_str(), "0", (int)port);
    must(connection, "connect");

    auto item = [&](size_t at, size_t size) {
        FifoItem there = place.item;
        uccl_engine_update_fifo(there, place.item.addr + at, (uint32_t)size);
        return there;
    };
    auto finish = [&](std::vector<uint64_t> transfers) {
        for (uint64_t transfer : transfers)
            while (!uccl_engine_xfer_status(connection, transfer))
                std::this_thread::yield();
    };
    // Several at once, one behind the other in memory.
    auto all = [&](size_t size, auto one) {
        std::vector<uint64_t> transfers(AT_ONCE);
        for (int i = 0; i < AT_ONCE; i++)
            must(one(connection, region, memory.data() + i * size, size, item(i * size, size),
                     &transfers[i]) == 0,
                 "transfer");
        finish(transfers);
    };
    auto fill = [&](size_t n, int round) {
        for (size_t at = 0; at < n; at++)
            memory[at] = value(round, at);
    };
    int round = 0;
    for (size_t size : { size_t(1), size_t(8), size_t(1000), size_t(4096), size_t(65536),
                         size_t(100003), size_t(1 << 20), MOST })
        for (int i = 0; i < 4; i++, round++) {
            fill(AT_ONCE * size, round);
            all(size, uccl_engine_write);
            std::fill(memory.begin(), memory.end(), 0xee);
            all(size, uccl_engine_read);
            check(memory, AT_ONCE * size, round, "READs");
        }
    // By lists, in turned order.
    fill(memory.size(), LAST);
    std::vector<uccl_mr_t> regions(AT_ONCE, region);
    std::vector<void *> here;
    std::vector<size_t> sizes(AT_ONCE, MOST);
    std::vector<FifoItem> there;
    for (int i = AT_ONCE; i-- > 0;) {
        here.push_back(memory.data() + i * MOST);
        there.push_back(item(i * MOST, MOST));
    }
    uint64_t transfer = 0;
    must(uccl_engine_write_vector(connection, regions, here, sizes, there, AT_ONCE, &transfer) == 0,
         "write_vector");
    finish({transfer});
    std::fill(memory.begin(), memory.end(), 0xee);
    must(uccl_engine_read_vector(connection, regions, here, sizes, there, AT_ONCE, &transfer) == 0,
         "read_vector");
    finish({transfer});
    check(memory, memory.size(), LAST, "READs");
    write_to(folder + "/done", "1", 1);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        std::fprintf(stderr, "usage: uccl FOLDER target|initiator\n");
        return 2;
    }
    std::vector<unsigned char> memory(AT_ONCE * MOST);
    uccl_engine_t *engine = uccl_engine_create(1, false);
    must(engine, "create");
    uccl_mr_t region = 0;
    must(uccl_engine_reg(engine, (uintptr_t)memory.data(), memory.size(), region) == 0, "reg");
    (std::strcmp(argv[2], "target") == 0 ? target : initiator)(argv[1], engine, memory, region);
    std::printf("%s: every byte was right\n", argv[2]);
    std::fflush(stdout);
    // The engine's end waits for peers.
    std::exit(0);
}
