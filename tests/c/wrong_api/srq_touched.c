// SPDX-License-Identifier: MIT OR Apache-2.0
/* The same with an SRQ, whose requests are in no queue pair. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_srq_attr size = {.struct_size = sizeof size, .max_wr = 16, .max_sge = 1};
    gdrc_srq srq;
    CHECK(gdrc_srq_create(ctx, pd, &size, &srq) == 0);
    gdrc_qp_init init = {.struct_size = sizeof init,
                         .qp_type = GDRC_QPT_RC,
                         .pd = pd,
                         .send_cq = cq,
                         .recv_cq = cq,
                         .srq = srq,
                         .cap = {1, 0, 1, 0, 0}};
    gdrc_qp from = make_qp(cq, 16), to;
    CHECK(gdrc_qp_create(ctx, &init, &to, NULL) == 0);
    connect_both(from, to);
    gdrc_sge sge = {(uintptr_t)memory + 4096, 256, keys.lkey};
    gdrc_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
    const gdrc_recv_wr *bad;
    memset(memory + 4096, 0xff, 256);
    CHECK(gdrc_post_srq_recv(ctx, srq, &wr, &bad) == 0); /* WRONG */
    memset(memory + 4096, 0, 256);
    CHECK(request(from, keys.lkey, GDRC_WR_SEND, memory, 64, NULL, 0, GDRC_SEND_SIGNALED) == 0);
    poll_good(2);
    CHECK(gdrc_qp_destroy(ctx, from) == 0 && gdrc_qp_destroy(ctx, to) == 0);
    CHECK(gdrc_srq_destroy(ctx, srq) == 0);
    return end();
}
