// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A CQ has as many entries as there are sends under way, and receive requests complete into it, too
 * (a benchmark with many queue pairs did so: ROCm/TransferBench, change 239).
 */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_cq *small = ibv_create_cq(ctx, 2, NULL, NULL, 0); /* WRONG */
    CHECK(small);
    struct ibv_qp *from = make_qp(cq, 16), *to = make_qp(small, 16);
    connect_both(from, to);
    for (int i = 0; i < 8; i++)
        receive(to, 4096 + i * 64, 64, i);
    for (int i = 0; i < 8; i++)
        CHECK(request(from, mr, IBV_WR_SEND, memory, 64, 0, IBV_SEND_SIGNALED) == 0);
    struct ibv_wc wc;
    int sent = 0, came = 0;
    for (int i = 0; i < 1000; i++)
        sent += ibv_poll_cq(cq, 1, &wc);
    while (sent + came < 16 && !event_waits()) {
        sent += ibv_poll_cq(cq, 1, &wc);
        came += ibv_poll_cq(small, 1, &wc);
    }
    CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
    CHECK(ibv_destroy_cq(small) == 0);
    return end();
}
