// SPDX-License-Identifier: MIT OR Apache-2.0
/* Each message has its receive request in time, so none is to be sent again (rnr_retry 0). */
#include "../wrong/wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_attr sqd = {.qp_state = IBV_QPS_SQD}, rts = {.qp_state = IBV_QPS_RTS};
    CHECK(ibv_modify_qp(a, &sqd, IBV_QP_STATE) == 0);
    CHECK(ibv_modify_qp(a, &sqd, IBV_QP_STATE | IBV_QP_RNR_RETRY) == 0);
    CHECK(ibv_modify_qp(a, &rts, IBV_QP_STATE) == 0);
    for (int i = 0; i < 2000; i++) {
        receive(b, 4096, 64, i);
        CHECK(post(IBV_WR_SEND, 0, 64, 0, 0) == 0);
        CHECK(next_wc(cq).status == IBV_WC_SUCCESS); /* WRONG */
    }
    return end();
}
