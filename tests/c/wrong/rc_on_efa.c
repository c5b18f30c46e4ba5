// SPDX-License-Identifier: MIT OR Apache-2.0
/* A queue pair of type RC; EFA has none. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_send_sge = 1}};
    struct ibv_qp *c = ibv_create_qp(pd, &init); /* WRONG */
    CHECK(c && ibv_destroy_qp(c) == 0);
    return end();
}
