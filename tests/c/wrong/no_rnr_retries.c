// SPDX-License-Identifier: MIT OR Apache-2.0
/* rnr_retry is left 0: one message before its receive request ends the connection. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp *c = make_qp(cq, 16);
    union ibv_gid gid;
    CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
    struct ibv_qp_attr x = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(ibv_modify_qp(c, &x,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    x = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = a->qp_num,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}}};
    CHECK(ibv_modify_qp(c, &x,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ==
          0);
    x = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                              .timeout = 14, .retry_cnt = 7};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT;
    mask |= IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(c, &x, mask) == 0); /* WRONG */
    CHECK(ibv_destroy_qp(c) == 0);
    return end();
}
