// SPDX-License-Identifier: MIT OR Apache-2.0
/* A queue pair is drained by SQD, on a NIC that does not have this state. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_attr x = {.qp_state = IBV_QPS_SQD};
    CHECK(ibv_modify_qp(a, &x, IBV_QP_STATE) == 0); /* WRONG */
    x.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(a, &x, IBV_QP_STATE) == 0);
    return end();
}
