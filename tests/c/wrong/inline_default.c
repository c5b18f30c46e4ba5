// SPDX-License-Identifier: MIT OR Apache-2.0
/* A NIC is to take 220 bytes inline, which not all do (linux-rdma/perftest, issue 139). */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 1, .max_inline_data = 220}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp); /* WRONG */
    CHECK(ibv_destroy_qp(qp) == 0);
    return end();
}
