// SPDX-License-Identifier: MIT OR Apache-2.0
/* One poll with room for all completions is taken for enough, since all messages have arrived. */
#include "messages.h"

int main(void)
{
    begin(16, 64);
    struct ibv_cq *own = ibv_create_cq(ctx, 64, NULL, NULL, 0);
    CHECK(own);
    struct ibv_qp *c = make_qp(own, 16), *d = make_qp(cq, 16);
    connect_both(c, d);
    struct ibv_wc wc[2 * MESSAGES];
    for (int round = 0; round < 10; round++) {
        write_and_wait(c);
        CHECK(ibv_poll_cq(own, 2 * MESSAGES, wc) == MESSAGES); /* WRONG */
    }
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_qp(d) == 0 && ibv_destroy_cq(own) == 0);
    return end();
}
