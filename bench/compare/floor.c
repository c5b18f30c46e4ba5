// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * floor: what a SEND and RECV of 8 bytes with verbs' meaning must cost between two processes, with
 * no library: one queue pair a side, posts of a receive and of an inline SEND, a ring of 64-byte
 * records in shared memory, keys, bounds, state and room checked, an ACK on the next record,
 * completions into the program's array, a lock at each of the three calls. It cannot retransmit and
 * has one kind of request and one queue pair, so a library with verbs' meaning is not faster.
 *
 * floor COUNT CORE CORE    half round trips between two processes, each on its core; JSON as perf's
 * floor COUNT              COUNT hops of one process alone, to count instructions
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 64u
#define REGIONS 16u
#define MAX_INLINE 32u
/* Round trips that are timed as a whole: reading the clock costs as much as a hop. */
#define BATCH 100u

enum { RESET, INIT, RTR, RTS };
enum { ACCESS_LOCAL_WRITE = 1 };
enum { WC_SEND = 0, WC_RECV = 128 };

struct record {
    _Alignas(64) _Atomic uint32_t seq;
    uint32_t qpn, ack, length;
    uint8_t data[MAX_INLINE];
};

struct ring {
    struct record records[DEPTH];
};

struct sge {
    uint64_t addr;
    uint32_t length, lkey;
};

struct region {
    uint64_t addr, length;
    uint32_t key, access;
};

struct request {
    uint64_t wr_id;
    struct sge sge;
    bool signaled;
};

struct completion {
    uint64_t wr_id;
    uint32_t status, opcode, length, qpn;
};

struct qp {
    _Atomic uint32_t lock;
    uint32_t state, qpn, peer;
    struct ring *tx, *rx;
    uint32_t sent, received, acked;
    uint32_t sq_head, sq_tail, rq_head, rq_tail;
    struct request sq[DEPTH], rq[DEPTH];
    struct region regions[REGIONS];
};

static bool try_lock(struct qp *q)
{
    uint32_t free = 0;
    return atomic_compare_exchange_strong_explicit(&q->lock, &free, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static void unlock(struct qp *q)
{
    atomic_store_explicit(&q->lock, 0, memory_order_release);
}

__attribute__((noinline)) static bool post_recv(struct qp *q, uint64_t wr_id, const struct sge *sge)
{
    if (!try_lock(q))
        return false;
    bool room = q->state >= INIT && q->rq_tail - q->rq_head < DEPTH;
    if (room)
        q->rq[q->rq_tail++ % DEPTH] = (struct request){ wr_id, *sge, true };
    unlock(q);
    return room;
}

__attribute__((noinline)) static bool post_send(struct qp *q, uint64_t wr_id, const void *data,
                                                uint32_t length)
{
    if (!try_lock(q))
        return false;
    bool fits = q->state == RTS && length <= MAX_INLINE && q->sq_tail - q->sq_head < DEPTH &&
                q->sent - q->acked < DEPTH;
    if (fits) {
        struct request *wr = &q->sq[q->sq_tail++ % DEPTH];
        wr->wr_id = wr_id;
        wr->signaled = true;
        struct record *r = &q->tx->records[q->sent % DEPTH];
        r->qpn = q->peer;
        r->ack = q->received;
        r->length = length;
        memcpy(r->data, data, length);
        atomic_store_explicit(&r->seq, ++q->sent, memory_order_release);
    }
    unlock(q);
    return fits;
}

/* Where a message goes that the receive request takes; NULL: its key or bounds forbid it. */
static void *target_of(const struct qp *q, const struct request *wr, uint32_t length)
{
    const struct region *m = &q->regions[wr->sge.lkey % REGIONS];
    bool allowed = m->key == wr->sge.lkey && m->access & ACCESS_LOCAL_WRITE &&
                   length <= wr->sge.length && wr->sge.addr >= m->addr &&
                   wr->sge.addr + length <= m->addr + m->length;
    return allowed ? (void *)(uintptr_t)wr->sge.addr : NULL;
}

/* Returns the number of completions in `wc`, which has room for `room`. */
__attribute__((noinline)) static int poll_cq(struct qp *q, int room, struct completion *wc)
{
    if (!try_lock(q))
        return 0;
    int n = 0;
    for (;;) {
        const struct record *r = &q->rx->records[q->received % DEPTH];
        if (n + 1 >= room || q->rq_head == q->rq_tail ||
            atomic_load_explicit(&r->seq, memory_order_acquire) != q->received + 1 ||
            r->qpn != q->qpn)
            break;
        const struct request *wr = &q->rq[q->rq_head % DEPTH];
        void *to = target_of(q, wr, r->length);
        if (!to)
            break;
        memcpy(to, r->data, r->length == 8 ? 8 : r->length);
        q->rq_head++;
        q->received++;
        q->acked = r->ack;
        wc[n++] = (struct completion){ wr->wr_id, 0, WC_RECV, r->length, q->qpn };
        for (; n < room && (int32_t)(q->acked - q->sq_head) > 0; q->sq_head++) {
            const struct request *done = &q->sq[q->sq_head % DEPTH];
            if (done->signaled)
                wc[n++] = (struct completion){ done->wr_id, 0, WC_SEND, 8, q->qpn };
        }
    }
    unlock(q);
    return n;
}

static _Alignas(4096) uint64_t memory[1024];
static const struct sge all_of_it = { 0, 64, 5 + REGIONS * 77 };

static struct sge sge_of_memory(void)
{
    struct sge sge = all_of_it;
    sge.addr = (uint64_t)(uintptr_t)memory;
    return sge;
}

static struct qp *connected(struct ring *tx, struct ring *rx, uint32_t qpn, uint32_t peer)
{
    struct qp *q = aligned_alloc(64, (sizeof *q + 63) / 64 * 64);
    if (!q)
        exit(1);
    memset(q, 0, sizeof *q);
    q->state = RTS;
    q->qpn = qpn;
    q->peer = peer;
    q->tx = tx;
    q->rx = rx;
    q->regions[all_of_it.lkey % REGIONS] = (struct region){
        (uint64_t)(uintptr_t)memory, sizeof memory, all_of_it.lkey, ACCESS_LOCAL_WRITE
    };
    return q;
}

/* Posts what it needs itself; the hops go to and fro. */
static int alone(struct ring *rings, uint64_t count)
{
    struct qp *from = connected(&rings[0], &rings[1], 1, 2);
    struct qp *to = connected(&rings[1], &rings[0], 2, 1);
    struct completion wc[8];
    struct sge sge = sge_of_memory();
    uint64_t value = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!post_recv(to, i, &sge) || !post_send(from, i, &value, 8) || !poll_cq(to, 8, wc))
            return 1;
        value += wc[0].length;
        struct qp *other = from;
        from = to;
        to = other;
    }
    return value != 8 * count;
}

static void await_message(struct qp *q, uint64_t wr_id, const struct sge *sge)
{
    struct completion wc[8];
    for (bool received = false; !received;) {
        int n = poll_cq(q, 8, wc);
        for (int i = 0; i < n; i++)
            received |= wc[i].opcode == WC_RECV;
    }
    post_recv(q, wr_id, sge);
}

static void stay_on(const char *core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)atoi(core), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int between(struct ring *rings, uint64_t count, const char *own, const char *other)
{
    uint64_t batches = count / BATCH + 1, all = batches * BATCH;
    uint64_t *took = calloc(batches, sizeof *took), value = 7;
    if (!took)
        return 1;
    struct sge sge = sge_of_memory();
    pid_t child = fork();
    if (child < 0)
        return 1;
    struct qp *q = child ? connected(&rings[0], &rings[1], 1, 2)
                         : connected(&rings[1], &rings[0], 2, 1);
    for (uint32_t i = 0; i < DEPTH / 2; i++)
        post_recv(q, i, &sge);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        stay_on(other);
        for (uint64_t i = 0; i < all; i++) {
            await_message(q, i, &sge);
            post_send(q, i, &value, 8);
        }
        _exit(0);
    }
    stay_on(own);
    uint64_t sum = 0;
    for (uint64_t batch = 0; batch < batches; batch++) {
        uint64_t start = now_ns();
        for (unsigned i = 0; i < BATCH; i++) {
            post_send(q, i, &value, 8);
            await_message(q, i, &sge);
        }
        took[batch] = now_ns() - start;
        sum += took[batch];
    }
    int status;
    waitpid(child, &status, 0);
    qsort(took, batches, sizeof *took, by_value);
    double unit = 2e3 * BATCH;
    printf("{\"results\":[{\"min_us\":%.4f,\"median_us\":%.4f,\"avg_us\":%.4f,\"p99_us\":%.4f}]}\n",
           (double)took[0] / unit, (double)took[batches / 2] / unit,
           (double)sum / unit / (double)batches, (double)took[batches * 99 / 100] / unit);
    return status != 0;
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    struct ring *rings =
        mmap(NULL, 2 * sizeof *rings, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rings != MAP_FAILED && count && count <= 1u << 26 && argc == 2)
        return alone(rings, count);
    if (rings != MAP_FAILED && count && count <= 1u << 26 && argc == 4)
        return between(rings, count, argv[2], argv[3]);
    fprintf(stderr, "usage: floor COUNT [CORE CORE]\n");
    return 2;
}
