// SPDX-License-Identifier: MIT OR Apache-2.0
/* A connected queue pair is given a rate by ibv_modify_qp. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_attr x = {.qp_state = IBV_QPS_RTS, .rate_limit = 1000000};
    CHECK(ibv_modify_qp(a, &x, IBV_QP_STATE | IBV_QP_RATE_LIMIT) == 0); /* WRONG */
    return end();
}
