/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What the wrong programs of the C API share: a context with two connected queue pairs and a
 * region, and short ways to post. Each program has one mistake, in the line that says WRONG, and
 * does what it wants on a device that forgives it. WRONG_STRICT of the environment is `strict` of
 * gdrc_config, WRONG_DEVICE another device than "loopback".
 */
#ifndef GDRC_TEST_WRONG_API_H
#define GDRC_TEST_WRONG_API_H

#include "../check.h"

#include <gdrcore.h>
#include <string.h>

#define SIZE 16384
#define REMOTE (GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ)

static gdrc_context *ctx;
static gdrc_pd pd;
static gdrc_mr mr;
static gdrc_mr_attr keys = {.struct_size = sizeof keys};
static gdrc_cq cq;
static gdrc_qp a, b;
static char memory[SIZE] __attribute__((aligned(4096)));

static inline gdrc_qp make_typed(uint32_t type, gdrc_cq of, uint32_t slots, uint32_t bytes)
{
    gdrc_qp_init init = {.struct_size = sizeof init,
                         .qp_type = type,
                         .pd = pd,
                         .send_cq = of,
                         .recv_cq = of,
                         .cap = {slots, 16, 2, 2, bytes}};
    gdrc_qp qp;
    CHECK(gdrc_qp_create(ctx, &init, &qp, NULL) == 0);
    return qp;
}

static inline gdrc_qp make_qp(gdrc_cq of, uint32_t slots)
{
    return make_typed(GDRC_QPT_RC, of, slots, 0);
}

static inline gdrc_cq make_cq(uint32_t entries)
{
    gdrc_cq made;
    CHECK(gdrc_cq_create(ctx, entries, &made, NULL) == 0);
    return made;
}

static inline void reg(void *at, size_t len, uint32_t rights, gdrc_mr *of, gdrc_mr_attr *attr)
{
    *attr = (gdrc_mr_attr){.struct_size = sizeof *attr};
    CHECK(gdrc_mr_reg(ctx, pd, at, len, rights, of, attr) == 0);
}

static inline gdrc_endpoint end_of(gdrc_qp qp)
{
    gdrc_endpoint end = {.struct_size = sizeof end};
    CHECK(gdrc_endpoint_local(ctx, qp, NULL, &end) == 0);
    return end;
}

/* Connects a side whose peer never answers; 0 or the negative errno. */
static inline int connect_one(gdrc_qp own, gdrc_qp to, const gdrc_qp_connect_opts *opts)
{
    gdrc_endpoint local = end_of(own), remote = end_of(to);
    return gdrc_qp_connect(ctx, own, &local, &remote, opts);
}

static inline void connect_both(gdrc_qp one, gdrc_qp other)
{
    gdrc_endpoint of_one = end_of(one), of_other = end_of(other);
    gdrc_qp_connect_opts opts = {.struct_size = sizeof opts,
                                 .access = GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ};
    CHECK(gdrc_qp_connect(ctx, one, &of_one, &of_other, &opts) == 0);
    CHECK(gdrc_qp_connect(ctx, other, &of_other, &of_one, &opts) == 0);
}

/* Two connected queue pairs with send queues of so many slots, and a CQ of so many entries. */
static inline void begin(uint32_t slots, uint32_t cqe)
{
    gdrc_config config = {.struct_size = sizeof config, .strict = getenv("WRONG_STRICT")};
    const char *device = getenv("WRONG_DEVICE");
    CHECK(gdrc_open(device ? device : "loopback", &config, &ctx) == 0);
    CHECK(gdrc_pd_alloc(ctx, &pd) == 0);
    cq = make_cq(cqe);
    reg(memory, sizeof memory, REMOTE, &mr, &keys);
    a = make_qp(cq, slots);
    b = make_qp(cq, slots);
    connect_both(a, b);
}

static inline void end_pair(void)
{
    CHECK(gdrc_qp_destroy(ctx, a) == 0 && gdrc_qp_destroy(ctx, b) == 0);
}

static inline int end(void)
{
    end_pair();
    CHECK(gdrc_cq_destroy(ctx, cq) == 0 && gdrc_mr_dereg(ctx, mr) == 0);
    CHECK(gdrc_pd_dealloc(ctx, pd) == 0 && gdrc_close(ctx, NULL) == 0);
    puts("ok");
    return 0;
}

/* A receive request for bytes of the region. */
static inline void receive(gdrc_qp qp, size_t at, uint32_t len, uint64_t id)
{
    gdrc_sge sge = {(uintptr_t)memory + at, len, keys.lkey};
    gdrc_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    const gdrc_recv_wr *bad;
    CHECK(gdrc_post_recv(ctx, qp, &wr, &bad) == 0);
}

/* A request from or into bytes at `at`; READs and WRITEs name the bytes at `to` by a key. */
static inline int request(gdrc_qp qp, uint32_t lkey, uint32_t opcode, const void *at, uint32_t len,
                          const void *to, uint32_t rkey, uint32_t flags)
{
    gdrc_sge sge = {(uintptr_t)at, len, lkey};
    gdrc_send_wr wr = {.wr_id = 7,
                       .sg_list = &sge,
                       .num_sge = 1,
                       .opcode = opcode,
                       .send_flags = flags,
                       .wr.rdma = {(uintptr_t)to, rkey}};
    const gdrc_send_wr *bad;
    return gdrc_post_send(ctx, qp, &wr, &bad);
}

static inline int post(uint32_t opcode, size_t at, uint32_t len, size_t to, uint32_t flags)
{
    return request(a, keys.lkey, opcode, memory + at, len, memory + to, keys.rkey, flags);
}

/* Posts a WRITE as soon as there is a slot; 0 if there is none for long, as on a NIC. */
static inline int write_when_free(uint32_t flags)
{
    int rc = -EAGAIN;
    for (int i = 0; i < 10000 && rc == -EAGAIN; i++)
        rc = post(GDRC_WR_RDMA_WRITE, 0, 8, 4096, flags);
    CHECK(rc == 0 || rc == -EAGAIN);
    return rc == 0;
}

/* The next completion of a CQ. */
static inline gdrc_wc next_wc(gdrc_cq of)
{
    gdrc_wc wc;
    int n;
    while ((n = gdrc_poll_cq(ctx, of, 1, &wc)) == 0)
        ;
    CHECK(n == 1);
    return wc;
}

/* So many good completions. */
static inline void poll_good(int n)
{
    while (n-- > 0)
        CHECK(next_wc(cq).status == GDRC_WC_SUCCESS);
}

/* Takes an asynchronous event, if one waits. */
static inline int event_waits(void)
{
    gdrc_async_event event;
    return gdrc_get_async_event(ctx, &event);
}

#endif
