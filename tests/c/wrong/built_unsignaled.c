// SPDX-License-Identifier: MIT OR Apache-2.0
/* Requests that ibv_wr_ calls build, of which none asks for a completion. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 16, .max_send_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
    struct ibv_qp *c = ibv_create_qp_ex(ctx, &init);
    CHECK(c);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(b, &reset, IBV_QP_STATE) == 0);
    connect_both(c, b);
    struct ibv_qp_ex *q = ibv_qp_to_qp_ex(c);
    for (int i = 0; i < 100; i++) {
        int rc = ENOMEM;
        for (int tries = 0; tries < 1000 && rc == ENOMEM; tries++) {
            ibv_wr_start(q);
            q->wr_flags = 0;
            ibv_wr_rdma_write(q, mr->rkey, (uintptr_t)memory + 4096);
            ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory, 8);
            rc = ibv_wr_complete(q); /* WRONG */
        }
        CHECK(rc == 0 || rc == ENOMEM);
        CHECK(rc == ENOMEM || i < 16 || !getenv("GDRC_STRICT"));
    }
    CHECK(ibv_destroy_qp(c) == 0);
    return end();
}
