// Gloo's collectives over its ibverbs transport, every element checked: gloo FOLDER RANK SIZE.
// FOLDER is where the ranks find each other. Exit code 0: all was as it should be.
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

// What a rank has at a place in a round; sums of it are exact.
static long value(int rank, int round, size_t at)
{
    return (long)(rank + 1) * 1000003 + round * 31 + (long)at * 7;
}

static int size_of_all, own;

// Buffers and algorithms are kept: Gloo ends the process where one ends while a completion of its
// sends is still to come, and nothing says when that is.
template <typename T, typename... Arguments>
static T &kept(Arguments &&...arguments)
{
    return *new T(std::forward<Arguments>(arguments)...);
}

static void fill(std::vector<long> &v, int round)
{
    for (size_t i = 0; i < v.size(); i++)
        v[i] = value(own, round, i);
}

static void check(const std::vector<long> &v, int round, int from, int to, const char *what)
{
    for (size_t i = 0; i < v.size(); i++) {
        long wanted = 0;
        for (int rank = from; rank < to; rank++)
            wanted += value(rank, round, i);
        if (v[i] != wanted) {
            std::fprintf(stderr, "rank %d: %s of %zu, round %d: wrong at %zu\n", own, what,
                         v.size(), round, i);
            std::exit(1);
        }
    }
}

template <typename Algorithm>
static void allreduce(const std::shared_ptr<gloo::Context> &context, size_t count, const char *what)
{
    auto &v = kept<std::vector<long>>(count);
    auto &algorithm = kept<Algorithm>(context, std::vector<long *>{v.data()}, (int)count);
    for (int round = 0; round < 20; round++) {
        fill(v, round);
        algorithm.run();
        check(v, round, 0, size_of_all, what);
    }
}

static void broadcast(const std::shared_ptr<gloo::Context> &context, size_t count, int root)
{
    auto &v = kept<std::vector<long>>(count);
    auto &algorithm = kept<gloo::BroadcastOneToAll<long>>(context, std::vector<long *>{ v.data() },
                                                          (int)count, root);
    auto &barrier = kept<gloo::BarrierAllToAll>(context);
    for (int round = 0; round < 20; round++) {
        fill(v, round);
        algorithm.run();
        check(v, round, root, root + 1, "broadcast");
        barrier.run();
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        std::fprintf(stderr, "usage: gloo FOLDER RANK SIZE\n");
        return 2;
    }
    own = std::atoi(argv[2]);
    size_of_all = std::atoi(argv[3]);
    gloo::transport::ibverbs::attr attr;
    attr.name = "gdrc0";
    attr.port = 1;
    attr.index = 1;
    auto device = gloo::transport::ibverbs::CreateDevice(attr);
    gloo::rendezvous::FileStore store(argv[1]);
    auto context = std::make_shared<gloo::rendezvous::Context>(own, size_of_all);
    context->connectFullMesh(store, device);
    for (size_t count : {1, 100, 4096, 100003}) {
        allreduce<gloo::AllreduceRing<long>>(context, count, "ring");
        allreduce<gloo::AllreduceRingChunked<long>>(context, count, "chunked ring");
        allreduce<gloo::AllreduceHalvingDoubling<long>>(context, count, "halving and doubling");
        for (int root = 0; root < size_of_all; root++)
            broadcast(context, count, root);
    }
    kept<gloo::BarrierAllToAll>(context).run();
    if (own == 0)
        std::printf("%d ranks: every element was right\n", size_of_all);
    std::fflush(stdout);
    // The last barrier's messages are under way to others.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::exit(0);
}
