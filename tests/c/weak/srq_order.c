// SPDX-License-Identifier: MIT OR Apache-2.0
/* The messages of an SRQ are expected in the order of its requests. */
#include "../wrong/wrong.h"

#define MESSAGES 16

int main(void)
{
    begin(16, 64);
    struct ibv_srq_init_attr room = {.attr = {.max_wr = MESSAGES, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &room);
    CHECK(srq);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = MESSAGES, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *c = make_qp(cq, MESSAGES), *d = ibv_create_qp(pd, &init);
    CHECK(d);
    connect_both(c, d);
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_sge sge = {(uintptr_t)memory + 8192 + 64 * i, 64, mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = 100 + i, .sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    }
    for (int i = 0; i < MESSAGES; i++) {
        memset(memory, i, 64);
        CHECK(request(c, mr, IBV_WR_SEND, memory, 64, 0, 0) == 0);
        struct ibv_wc wc = next_wc(cq);
        CHECK(wc.status == IBV_WC_SUCCESS);
        CHECK(wc.wr_id == 100u + i); /* WRONG */
    }
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_qp(d) == 0 && ibv_destroy_srq(srq) == 0);
    return end();
}
