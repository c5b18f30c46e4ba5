// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Requests that are refused take no slots: more of them than the queue has, by themselves, behind a
 * good one in a list, as receive requests, and built by ibv_wr_ calls.
 */
#include "rc_pair.h"

#define SLOTS 8

static char memory[8192];

int main(void)
{
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE);
    CHECK(pd && cq && mr);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
    struct ibv_qp *a = ibv_create_qp_ex(ctx, &init), *b = ibv_create_qp_ex(ctx, &init);
    CHECK(a && b);
    connect_both(a, b);
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr wrong = {.sg_list = &sge, .num_sge = 99, .opcode = IBV_WR_RDMA_WRITE};
    struct ibv_send_wr good = {.next = &wrong,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED,
                               .wr.rdma = {(uintptr_t)memory + 4096, mr->rkey}},
                       *bad;
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 99}, *bad_recv;
    struct ibv_qp_ex *q = ibv_qp_to_qp_ex(a);
    errno = 0;
    CHECK(!ibv_create_cq(ctx, -1, NULL, NULL, 0) && errno == EINVAL);
    for (int i = 0; i < 2 * SLOTS; i++) {
        CHECK(ibv_post_send(a, &wrong, &bad) != 0 && bad == &wrong);
        CHECK(ibv_post_send(a, &good, &bad) != 0 && bad == &wrong);
        CHECK(next_wc(cq).status == IBV_WC_SUCCESS);
        CHECK(ibv_post_recv(a, &recv, &bad_recv) != 0 && bad_recv == &recv);
        ibv_wr_start(q);
        q->wr_flags = 0;
        ibv_wr_rdma_write(q, mr->rkey, (uintptr_t)memory + 4096);
        ibv_wr_set_sge_list(q, 99, &sge);
        CHECK(ibv_wr_complete(q) != 0);
    }
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    puts("ok");
    return 0;
}
