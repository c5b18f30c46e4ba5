// SPDX-License-Identifier: MIT OR Apache-2.0
/* The opcode of a completion that failed tells whether it was a SEND: it is undefined. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_modify_qp(a, &err, IBV_QP_STATE) == 0);
    CHECK(post(IBV_WR_SEND, 0, 64, 0, IBV_SEND_SIGNALED) == 0);
    struct ibv_wc wc = next_wc(cq);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 7);
    CHECK(wc.opcode == IBV_WC_SEND); /* WRONG */
    return end();
}
