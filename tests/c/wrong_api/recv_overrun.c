// SPDX-License-Identifier: MIT OR Apache-2.0
/* A CQ has fewer entries than messages come before the program polls it. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_cq small = make_cq(2); /* WRONG */
    gdrc_qp from = make_qp(cq, 16), to = make_qp(small, 16);
    connect_both(from, to);
    for (int i = 0; i < 8; i++)
        receive(to, 4096 + i * 64, 64, i);
    for (int i = 0; i < 8; i++)
        CHECK(request(from, keys.lkey, GDRC_WR_SEND, memory, 64, NULL, 0, GDRC_SEND_SIGNALED) == 0);
    gdrc_wc wc;
    int sent = 0, came = 0;
    for (int i = 0; i < 1000; i++)
        sent += gdrc_poll_cq(ctx, cq, 1, &wc);
    /* A device that forgives it completes all; on a NIC the CQ has failed. */
    for (int i = 0; i < 1000 && sent + came < 16; i++) {
        sent += gdrc_poll_cq(ctx, cq, 1, &wc);
        came += gdrc_poll_cq(ctx, small, 1, &wc);
    }
    CHECK(gdrc_qp_destroy(ctx, from) == 0 && gdrc_qp_destroy(ctx, to) == 0);
    CHECK(gdrc_cq_destroy(ctx, small) == 0);
    return end();
}
