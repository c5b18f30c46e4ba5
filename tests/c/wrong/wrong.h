/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What the wrong programs share: two connected queue pairs, a region, and short ways to post. Each
 * program has one mistake, in the line that says WRONG, and does what it wants on a device that
 * forgives it.
 */
#ifndef GDRC_TEST_WRONG_H
#define GDRC_TEST_WRONG_H

#include "../rc_pair.h"

#include <poll.h>

#define SIZE 16384

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static char memory[SIZE] __attribute__((aligned(4096)));

static inline struct ibv_qp *make_qp(struct ibv_cq *of, int slots)
{
    struct ibv_qp_init_attr init = {
        .send_cq = of,
        .recv_cq = of,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = slots,
                .max_recv_wr = 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

/* Two connected queue pairs with send queues of so many slots, and a CQ of so many entries. */
static inline void begin(int slots, int cqe)
{
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)));
    CHECK((cq = ibv_create_cq(ctx, cqe, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE)));
    a = make_qp(cq, slots);
    b = make_qp(cq, slots);
    connect_both(a, b);
}

static inline void end_pair(void)
{
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

static inline void end_rest(void)
{
    CHECK(ibv_destroy_cq(cq) == 0);
    if (mr)
        CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
}

static inline int end(void)
{
    end_pair();
    end_rest();
    puts("ok");
    return 0;
}

/* A receive request for bytes of the region. */
static inline void receive(struct ibv_qp *qp, size_t at, uint32_t len, uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)memory + at, len, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* A request from or into bytes at `at` of a region; READs and WRITEs name the bytes at `to`. */
static inline int request(struct ibv_qp *qp, struct ibv_mr *of, enum ibv_wr_opcode opcode,
                          const char *at, uint32_t len, size_t to, unsigned flags)
{
    struct ibv_sge sge = {(uintptr_t)at, len, of->lkey};
    struct ibv_send_wr wr = {.wr_id = 7,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = flags,
                             .wr.rdma = {(uintptr_t)memory + to, mr->rkey}},
                       *bad;
    return ibv_post_send(qp, &wr, &bad);
}

static inline int post(enum ibv_wr_opcode opcode, size_t at, uint32_t len, size_t to,
                       unsigned flags)
{
    return request(a, mr, opcode, memory + at, len, to, flags);
}

/* Posts a WRITE as soon as there is a slot; 0 if there is none for long, as on a NIC. */
static inline int write_when_free(unsigned flags)
{
    int rc = ENOMEM;
    for (int i = 0; i < 10000 && rc == ENOMEM; i++)
        rc = post(IBV_WR_RDMA_WRITE, 0, 8, 4096, flags);
    CHECK(rc == 0 || rc == ENOMEM);
    return rc == 0;
}

/* So many good completions. */
static inline void poll_good(int n)
{
    while (n-- > 0)
        CHECK(next_wc(cq).status == IBV_WC_SUCCESS);
}

/* Whether an asynchronous event waits. */
static inline int event_waits(void)
{
    struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* Takes so many completions, or those that come before an event; returns how many were good. */
static inline int poll_until_event(int n)
{
    int good = 0;
    while (n > 0 && !event_waits()) {
        struct ibv_wc wc;
        int got = ibv_poll_cq(cq, 1, &wc);
        CHECK(got >= 0);
        n -= got;
        good += got && wc.status == IBV_WC_SUCCESS;
    }
    return good;
}

#endif
