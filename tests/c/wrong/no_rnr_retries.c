// SPDX-License-Identifier: MIT OR Apache-2.0
/* rnr_retry is left 0: one message before its receive request ends the connection. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp *c = make_qp(cq, 16);
    struct ibv_qp_attr x = towards(ctx, a->qp_num);
    take_to(c, IBV_QPS_INIT, x);
    take_to(c, IBV_QPS_RTR, x);
    x.qp_state = IBV_QPS_RTS;
    x.rnr_retry = 0;
    CHECK(ibv_modify_qp(c, &x, attributes_of(c, IBV_QPS_RTS)) == 0); /* WRONG */
    CHECK(ibv_destroy_qp(c) == 0);
    return end();
}
