// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * loop: one operation between two queue pairs of one context, many times, for callgrind and for the
 * clock.
 *
 * loop OPERATION COUNT [DEVICE DEVICE]   runs COUNT operations inside measured(), the function that
 *                                        callgrind collects
 * loop OPERATION time     prints the fastest and the median of many batches of 50, in nanoseconds
 *
 * OPERATION: write (8 bytes inline, signalled), send (8 bytes inline with its receive), read (8
 * bytes), post (an unsignalled write and no poll), empty (a poll that finds nothing), clock (the
 * clock alone). "write:N" runs it beside N connected queue pairs of each context that are idle.
 *
 * hop, write-hop: one way of a ping-pong of 8 bytes over shared memory between two contexts, both
 * driven by this thread: one end's post (inline, unsignalled), the other's poll or progress that
 * finds it, and its next receive. mapped-hop: the same WRITE into shared memory of the target that
 * the initiator has mapped. udp-hop, udp-write-hop: the same over the socket, the SEND with 64
 * bytes. hop-empty, udp-empty: a poll there that finds nothing. fast-hop: hop by fast handles.
 * stream: hop in one direction only, eight messages and then the ACK and the completion of the
 * last; counted by messages. udp-stream: over the socket. dc-hop, dc-stream, dc-udp-stream: from a
 * DCI to a DCT, one of each at either end, over one association each way. dc-write, dc-send: write
 * and send from a DCI to a DCT of one context.
 */
#include <gdrcore.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DATA 4096

#define BATCH 50
#define BATCHES 20000
#define ALL                                                                         \
    (GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ | \
     GDRC_ACCESS_REMOTE_ATOMIC)

static _Alignas(64) unsigned char data[4096];
static gdrc_context *ctx;
static gdrc_pd pd;
static gdrc_cq cq;
static gdrc_qp qp[2];
static gdrc_mr mr;
static struct gdrc_mr_attr attr = { .struct_size = sizeof attr };

static void check(const char *what, int err)
{
    if (err < 0) {
        fprintf(stderr, "loop: %s: %s\n", what, gdrc_strerror(err));
        exit(1);
    }
}

/* Where a queue pair is made. */
struct place {
    gdrc_context *ctx;
    gdrc_pd pd;
    gdrc_cq cq;
};

static void make(struct place at, uint32_t type, uint32_t depth, gdrc_qp *q)
{
    struct gdrc_qp_init init;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = type;
    init.pd = at.pd;
    init.send_cq = init.recv_cq = at.cq;
    init.cap = (struct gdrc_qp_cap){
        .max_send_wr = depth,
        .max_recv_wr = depth,
        .max_send_sge = 1,
        .max_recv_sge = 1,
        .max_inline_data = 64,
    };
    check("qp_create", gdrc_qp_create(at.ctx, &init, q, NULL));
}

static void join(const struct place at[2], uint32_t depth, gdrc_qp q[2])
{
    struct gdrc_endpoint end[2];
    for (int i = 0; i < 2; i++) {
        make(at[i], GDRC_QPT_RC, depth, &q[i]);
        end[i].struct_size = sizeof end[i];
        check("endpoint", gdrc_endpoint_local(at[i].ctx, q[i], NULL, &end[i]));
    }
    for (int i = 0; i < 2; i++)
        check("connect", gdrc_qp_connect(at[i].ctx, q[i], &end[i], &end[!i], NULL));
}

/* `count` connected queue pairs at either place, for which nothing is ever posted. */
static void join_idle(const struct place at[2], long count)
{
    for (long i = 0; i < count; i++) {
        gdrc_qp other[2];
        join(at, 4, other);
    }
}

static void make_room(struct gdrc_config *config, long idle)
{
    memset(config, 0, sizeof *config);
    config->struct_size = sizeof *config;
    config->max_qp = 64 + (uint32_t)idle;
    config->ring_bytes = (8u << 20) + (uint64_t)idle * (4u << 10);
}

static void take(int count)
{
    gdrc_wc wc;
    while (count > 0) {
        int n = gdrc_poll_cq(ctx, cq, 1, &wc);
        check("poll_cq", n);
        if (n > 0 && wc.status != GDRC_WC_SUCCESS) {
            fprintf(stderr, "loop: completion with status %u\n", wc.status);
            exit(1);
        }
        count -= n;
    }
}

static void request(uint32_t opcode, uint32_t flags)
{
    gdrc_sge sge = { .addr = (uintptr_t)data, .length = 8, .lkey = attr.lkey };
    gdrc_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags };
    wr.wr.rdma.remote_addr = attr.iova + 2048;
    wr.wr.rdma.rkey = attr.rkey;
    check("post_send", gdrc_post_send(ctx, qp[0], &wr, NULL));
}

static void op_write(void)
{
    request(GDRC_WR_RDMA_WRITE, GDRC_SEND_SIGNALED | GDRC_SEND_INLINE);
    take(1);
}

/* Unsignalled: its slot is free again when the call returns. */
static void op_post(void) { request(GDRC_WR_RDMA_WRITE, GDRC_SEND_INLINE); }

static void op_read(void)
{
    request(GDRC_WR_RDMA_READ, GDRC_SEND_SIGNALED);
    take(1);
}

static void op_send(void)
{
    gdrc_sge sge = { .addr = (uintptr_t)data + 2048, .length = 8, .lkey = attr.lkey };
    gdrc_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
    check("post_recv", gdrc_post_recv(ctx, qp[1], &wr, NULL));
    request(GDRC_WR_SEND, GDRC_SEND_SIGNALED | GDRC_SEND_INLINE);
    take(2);
}

static void op_empty(void)
{
    gdrc_wc wc;
    check("poll_cq", gdrc_poll_cq(ctx, cq, 1, &wc));
}

/* The two ends of a ping-pong over shared memory. */
static struct end {
    gdrc_context *ctx;
    gdrc_pd pd;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_qp_fast *fast_qp;
    gdrc_cq_fast *fast_cq;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
    volatile uint64_t *data; /* 16 words of a memfd */
    int fd;
    /* dc-hop: qp is a DCI, and this is what receives. */
    gdrc_srq srq;
    gdrc_qp dct;
    gdrc_dc_wr to;
} ends[2];
static uint64_t hops;
static uint32_t size = 8;
static bool shared, udp, dc;
static long idle;
static const char *names[2] = { "soft:127.0.0.1:4841", "soft:127.0.0.2:4841" };

static void end_recv(struct end *e)
{
    gdrc_sge sge = { .addr = (uintptr_t)&e->data[8], .length = size, .lkey = e->attr.lkey };
    gdrc_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
    check("post_recv", gdrc_post_recv(e->ctx, e->qp, &wr, NULL));
}

/* end_recv for the DCT of an end. */
static void target_recv(struct end *e)
{
    gdrc_sge sge = { .addr = (uintptr_t)&e->data[8], .length = size, .lkey = e->attr.lkey };
    gdrc_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
    check("post_recv", gdrc_post_srq_recv(e->ctx, e->srq, &wr, NULL));
}

static void end_post(struct end *e, struct end *to, uint32_t opcode)
{
    e->data[0] = ++hops;
    gdrc_sge sge = { .addr = (uintptr_t)&e->data[0], .length = size, .lkey = e->attr.lkey };
    gdrc_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = opcode,
        .send_flags = GDRC_SEND_INLINE,
    };
    if (hops % 16 < 2) // now and then, which frees the slots of the unsignalled ones
        wr.send_flags |= GDRC_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = to->attr.iova + 64;
    wr.wr.rdma.rkey = to->attr.rkey;
    check("post_send", gdrc_post_send(e->ctx, e->qp, &wr, NULL));
}

static void op_hop(void)
{
    struct end *x = &ends[hops & 1], *y = &ends[~hops & 1];
    end_post(x, y, GDRC_WR_SEND);
    gdrc_wc wc;
    for (int received = 0; !received;) {
        int n = gdrc_poll_cq(y->ctx, y->cq, 1, &wc);
        check("poll_cq", n < 0 ? n : n && wc.status ? -5 : 0);
        received = n && wc.opcode == GDRC_WC_OP_RECV;
    }
    end_recv(y);
}

/* A SEND from an end to the other's DCT, which receives it. */
static void target_send(struct end *x, struct end *y, uint32_t flags)
{
    x->data[0] = hops;
    gdrc_sge sge = { .addr = (uintptr_t)&x->data[0], .length = size, .lkey = x->attr.lkey };
    gdrc_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = GDRC_WR_SEND };
    wr.send_flags = GDRC_SEND_INLINE | flags;
    wr.ext.dc = x->to;
    check("post_send", gdrc_post_send(x->ctx, x->qp, &wr, NULL));
    gdrc_wc wc;
    for (int received = 0; !received;) {
        int n = gdrc_poll_cq(y->ctx, y->cq, 1, &wc);
        check("poll_cq", n < 0 ? n : n && wc.status ? -EIO : 0);
        received = n && wc.opcode == GDRC_WC_OP_RECV;
        /* The association: its answer comes to the sender. */
        if (!n)
            check("progress", gdrc_progress(x->ctx));
    }
    target_recv(y);
}

static void op_dc_hop(void)
{
    struct end *x = &ends[hops & 1], *y = &ends[~hops & 1];
    hops++;
    target_send(x, y, hops % 16 < 2 ? GDRC_SEND_SIGNALED : 0);
}

/* The ACK and the completion of the last message in one direction. */
static void stream_ends(struct end *x, struct end *y)
{
    gdrc_wc wc;
    for (int ended = 0; !ended;) {
        check("progress", gdrc_progress(y->ctx));
        ended = gdrc_poll_cq(x->ctx, x->cq, 1, &wc);
        check("poll_cq", ended < 0 ? ended : ended && wc.status ? -EIO : 0);
    }
}

static void op_dc_stream(void)
{
    bool last = ++hops % 8 == 0;
    target_send(&ends[0], &ends[1], last ? GDRC_SEND_SIGNALED : 0);
    if (last)
        stream_ends(&ends[0], &ends[1]);
}

/* One message; the eighth is answered by the ACK of all. */
static void op_stream(void)
{
    struct end *x = &ends[0], *y = &ends[1];
    gdrc_sge sge = { .addr = (uintptr_t)&x->data[0], .length = size, .lkey = x->attr.lkey };
    gdrc_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = GDRC_WR_SEND };
    bool last = ++hops % 8 == 0;
    wr.send_flags = GDRC_SEND_INLINE | (last ? GDRC_SEND_SIGNALED : 0);
    check("post_send", gdrc_post_send(x->ctx, x->qp, &wr, NULL));
    gdrc_wc wc;
    for (int received = 0; !received;) {
        received = gdrc_poll_cq(y->ctx, y->cq, 1, &wc);
        check("poll_cq", received < 0 ? received : received && wc.status ? -EIO : 0);
    }
    end_recv(y);
    if (last)
        stream_ends(x, y);
}

static void op_fast_hop(void)
{
    struct end *x = &ends[hops & 1], *y = &ends[~hops & 1];
    x->data[0] = ++hops;
    gdrc_sge out = { .addr = (uintptr_t)&x->data[0], .length = size, .lkey = x->attr.lkey };
    gdrc_send_wr wr = {
        .sg_list = &out,
        .num_sge = 1,
        .opcode = GDRC_WR_SEND,
        .send_flags = GDRC_SEND_INLINE,
    };
    if (hops % 16 < 2)
        wr.send_flags |= GDRC_SEND_SIGNALED;
    const gdrc_send_wr *worse;
    check("post_send", gdrc_qp_fast_post_send(x->fast_qp, &wr, &worse));
    gdrc_wc wc;
    for (int received = 0; !received;) {
        int n = gdrc_cq_fast_poll(y->fast_cq, 1, &wc);
        check("poll_cq", n < 0 ? n : n && wc.status ? -5 : 0);
        received = n && wc.opcode == GDRC_WC_OP_RECV;
    }
    gdrc_sge in = { .addr = (uintptr_t)&y->data[8], .length = size, .lkey = y->attr.lkey };
    gdrc_recv_wr next = { .sg_list = &in, .num_sge = 1 };
    const gdrc_recv_wr *bad;
    check("post_recv", gdrc_qp_fast_post_recv(y->fast_qp, &next, &bad));
}

/* A poll of one end that finds nothing. */
static void op_hop_empty(void)
{
    gdrc_wc wc;
    check("poll_cq", gdrc_poll_cq(ends[0].ctx, ends[0].cq, 1, &wc));
}

static void op_write_hop(void)
{
    struct end *x = &ends[hops & 1], *y = &ends[~hops & 1];
    end_post(x, y, GDRC_WR_RDMA_WRITE);
    while (y->data[8] != hops)
        check("progress", gdrc_progress(y->ctx));
    if (hops % 64 < 2) {
        gdrc_wc wc[8];
        check("poll_cq", gdrc_poll_cq(y->ctx, y->cq, 8, wc));
    }
}

/* Runs both until either end has mapped the other's memory; a grant takes some milliseconds. */
static void ends_mapped(void)
{
    uint64_t counters[256] = { 0 };
    uint32_t which = 0, n = gdrc_counter_count();
    while (which < n && strcmp(gdrc_counter_name(which), "mapped_writes"))
        which++;
    check("counters", which < n && n <= 256 ? 0 : -ENOENT);
    for (int i = 0; i < 2; i++) {
        do {
            op_write_hop();
            // A delayed ACK leaves in a round in which nothing has come.
            for (int k = 0; k < 4; k++)
                check("progress", gdrc_progress(ends[k & 1].ctx));
            check("counters", gdrc_counters(ends[i].ctx, counters, n));
        } while (counters[which] < 10);
    }
}

/* A DCT beside the DCI of an end, and its endpoint. */
static void end_target(struct end *e, struct gdrc_endpoint *at)
{
    struct gdrc_srq_attr attr = { .struct_size = sizeof attr, .max_wr = 64, .max_sge = 1 };
    struct gdrc_qp_init init;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = GDRC_QPT_DCT;
    init.pd = e->pd;
    init.recv_cq = e->cq;
    init.dc_key = 1;
    check("srq_create", gdrc_srq_create(e->ctx, e->pd, &attr, &e->srq));
    init.srq = e->srq;
    check("qp_create", gdrc_qp_create(e->ctx, &init, &e->dct, NULL));
    at->struct_size = sizeof *at;
    check("endpoint", gdrc_endpoint_local(e->ctx, e->dct, NULL, at));
    check("connect", gdrc_qp_connect(e->ctx, e->dct, at, NULL, NULL));
}

/* The queue pair of an end from which requests leave. */
static void end_initiator(struct end *e, uint32_t type)
{
    make((struct place){ e->ctx, e->pd, e->cq }, type, 64, &e->qp);
}

/* The way from an end to the DCT of another. */
static void end_name(struct end *e, const struct gdrc_endpoint *target)
{
    struct gdrc_ah_attr to;
    memset(&to, 0, sizeof to);
    memcpy(to.dgid, target->gid, sizeof to.dgid);
    e->to = (gdrc_dc_wr){ .dc_key = 1, .dctn = target->qpn };
    check("ah_create", gdrc_ah_create(e->ctx, e->pd, &to, &e->to.ah));
}

static void ends_open(void)
{
    struct gdrc_endpoint targets[2];
    struct gdrc_endpoint at[2];
    for (int i = 0; i < 2; i++) {
        struct end *e = &ends[i];
        struct gdrc_config config;
        make_room(&config, idle);
        config.flags = udp ? GDRC_CONFIG_UDP_ONLY : GDRC_CONFIG_SHM_ONLY;
        e->attr.struct_size = sizeof e->attr;
        check("open", gdrc_open(names[i], &config, &e->ctx));
        check("pd", gdrc_pd_alloc(e->ctx, &e->pd));
        check("cq", gdrc_cq_create(e->ctx, 256, &e->cq, NULL));
        e->fd = memfd_create("stages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        check("memory", e->fd < 0 || ftruncate(e->fd, DATA) < 0 ||
                                fcntl(e->fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0
                            ? -ENOMEM
                            : 0);
        e->data = mmap(NULL, DATA, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
        check("memory", e->data == MAP_FAILED ? -ENOMEM : 0);
        struct gdrc_memory memory = {
            .struct_size = sizeof memory,
            .kind = GDRC_MEMORY_HOST,
            .addr = (uintptr_t)e->data,
            .length = DATA,
        };
        memory.flags = shared ? GDRC_MEMORY_FLAG_SHARED : 0;
        memory.fd = e->fd;
        check("mr", gdrc_mr_reg_memory(e->ctx, e->pd, &memory, ALL, &e->mr, &e->attr));
        end_initiator(e, dc ? GDRC_QPT_DCI : GDRC_QPT_RC);
        at[i].struct_size = sizeof at[i];
        check("endpoint", gdrc_endpoint_local(e->ctx, e->qp, &e->mr, &at[i]));
        check("fast_get", gdrc_qp_fast_get(e->ctx, e->qp, &e->fast_qp));
        check("fast_get", gdrc_cq_fast_get(e->ctx, e->cq, &e->fast_cq));
        if (dc)
            end_target(e, &targets[i]);
    }
    for (int i = 0; i < 2 && dc; i++)
        end_name(&ends[i], &targets[!i]);
    for (int i = 0; i < 2; i++) {
        check("connect", gdrc_qp_connect(ends[i].ctx, ends[i].qp, &at[i], &at[!i], NULL));
        for (int k = 0; k < 2; k++)
            (dc ? target_recv : end_recv)(&ends[i]);
    }
    struct place places[2];
    for (int i = 0; i < 2; i++)
        places[i] = (struct place){ ends[i].ctx, ends[i].pd, ends[i].cq };
    join_idle(places, idle);
}

/* A DCI and a DCT of the first context, in ends[0]. */
static void target_within(void)
{
    struct end *e = &ends[0];
    struct gdrc_endpoint own, target;
    e->ctx = ctx, e->pd = pd, e->cq = cq;
    end_target(e, &target);
    end_initiator(e, GDRC_QPT_DCI);
    own.struct_size = sizeof own;
    check("endpoint", gdrc_endpoint_local(ctx, e->qp, NULL, &own));
    check("connect", gdrc_qp_connect(ctx, e->qp, &own, &own, NULL));
    end_name(e, &target);
}

static void request_within(uint32_t opcode)
{
    gdrc_sge sge = { .addr = (uintptr_t)data, .length = 8, .lkey = attr.lkey };
    gdrc_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode };
    wr.send_flags = GDRC_SEND_SIGNALED | GDRC_SEND_INLINE;
    wr.wr.rdma.remote_addr = attr.iova + 2048;
    wr.wr.rdma.rkey = attr.rkey;
    wr.ext.dc = ends[0].to;
    check("post_send", gdrc_post_send(ctx, ends[0].qp, &wr, NULL));
}

static void op_dc_write(void)
{
    request_within(GDRC_WR_RDMA_WRITE);
    take(1);
}

static void op_dc_send(void)
{
    gdrc_sge sge = { .addr = (uintptr_t)data + 2048, .length = 8, .lkey = attr.lkey };
    gdrc_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
    check("post_recv", gdrc_post_srq_recv(ctx, ends[0].srq, &wr, NULL));
    request_within(GDRC_WR_SEND);
    take(2);
}

static uint64_t now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static volatile uint64_t sink;
static void op_clock(void) { sink = now(); }

static const struct {
    const char *name;
    void (*run)(void);
} ops[] = { { "write", op_write },
            { "send", op_send },
            { "read", op_read },
            { "post", op_post },
            { "empty", op_empty },
            { "clock", op_clock },
            { "hop", op_hop },
            { "write-hop", op_write_hop },
            { "mapped-hop", op_write_hop },
            { "hop-empty", op_hop_empty },
            { "dc-hop", op_dc_hop },
            { "dc-write", op_dc_write },
            { "dc-send", op_dc_send },
            { "stream", op_stream },
            { "udp-stream", op_stream },
            { "dc-stream", op_dc_stream },
            { "dc-udp-stream", op_dc_stream },
            { "udp-hop", op_hop },
            { "udp-write-hop", op_write_hop },
            { "udp-empty", op_hop_empty },
            { "fast-hop", op_fast_hop } };

__attribute__((noinline)) void measured(void (*op)(void), long count)
{
    for (long i = 0; i < count; i++)
        op();
    __asm__ volatile("" ::: "memory");
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: loop write|send|read|post|empty|clock[:IDLE]|hop|write-hop|"
                        "mapped-hop|hop-empty|dc-hop|udp-hop|udp-write-hop|udp-empty|fast-hop|"
                        "stream|udp-stream|dc-stream|dc-udp-stream|dc-write|dc-send COUNT|time "
                        "[DEVICE DEVICE]\n");
        return 2;
    }
    void (*op)(void) = NULL;
    size_t len = strcspn(argv[1], ":");
    idle = argv[1][len] ? atol(argv[1] + len + 1) : 0;
    if (argc == 5)
        names[0] = argv[3], names[1] = argv[4];
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strlen(ops[i].name) == len && !strncmp(ops[i].name, argv[1], len))
            op = ops[i].run;
    if (!op) {
        fprintf(stderr, "loop: no operation '%s'\n", argv[1]);
        return 2;
    }
    struct gdrc_config config;
    make_room(&config, idle);
    check("open", gdrc_open("loopback", &config, &ctx));
    check("pd", gdrc_pd_alloc(ctx, &pd));
    check("cq", gdrc_cq_create(ctx, 256, &cq, NULL));
    check("mr", gdrc_mr_reg(ctx, pd, data, sizeof data, ALL, &mr, &attr));
    const struct place here[2] = { { ctx, pd, cq }, { ctx, pd, cq } };
    join(here, 64, qp);
    join_idle(here, idle / 2);
    shared = !strcmp(argv[1], "mapped-hop");
    dc = !strncmp(argv[1], "dc-", 3);
    udp = strstr(argv[1], "udp-") != NULL;
    size = op == op_hop && udp ? 64 : 8;
    if (op == op_hop || op == op_write_hop || op == op_hop_empty || op == op_fast_hop ||
        op == op_stream || op == op_dc_hop || op == op_dc_stream)
        ends_open();
    if (op == op_dc_write || op == op_dc_send)
        target_within();
    if (shared)
        ends_mapped();
    for (int i = 0; i < 1000; i++)
        op();
    if (strcmp(argv[2], "time")) {
        measured(op, atol(argv[2]));
        return gdrc_close(ctx, NULL) < 0;
    }
    static uint64_t took[BATCHES];
    for (int k = 0; k < BATCHES; k++) {
        uint64_t start = now();
        measured(op, BATCH);
        took[k] = now() - start;
    }
    qsort(took, BATCHES, sizeof took[0], by_value);
    printf("%s: fastest %.1f ns, median %.1f ns\n", argv[1], (double)took[0] / BATCH,
           (double)took[BATCHES / 2] / BATCH);
    return gdrc_close(ctx, NULL) < 0;
}
