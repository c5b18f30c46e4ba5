// SPDX-License-Identifier: MIT OR Apache-2.0
/* A queue pair is drained by SQD, on a NIC that does not have this state. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_qp_attr x = {.struct_size = sizeof x, .qp_state = GDRC_QPS_SQD};
    CHECK(gdrc_qp_modify(ctx, a, &x, GDRC_QP_STATE) == 0); /* WRONG */
    x.qp_state = GDRC_QPS_RTS;
    CHECK(gdrc_qp_modify(ctx, a, &x, GDRC_QP_STATE) == 0);
    return end();
}
