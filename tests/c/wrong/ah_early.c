// SPDX-License-Identifier: MIT OR Apache-2.0
/* The address handle of a datagram is destroyed before its completion. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .qp_type = IBV_QPT_UD,
                                    .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    struct ibv_qp *ud = ibv_create_qp(pd, &init);
    CHECK(ud);
    struct ibv_qp_attr x = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11};
    CHECK(ibv_modify_qp(ud, &x, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    x.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(ud, &x, IBV_QP_STATE) == 0);
    x.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(ud, &x, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
    CHECK(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {ah, ud->qp_num, 0x11}},
                       *bad;
    CHECK(ibv_post_send(ud, &wr, &bad) == 0);
    CHECK(ibv_destroy_ah(ah) == 0); /* WRONG */
    poll_good(1);
    CHECK(ibv_destroy_qp(ud) == 0);
    return end();
}
