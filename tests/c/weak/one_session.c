// SPDX-License-Identifier: MIT OR Apache-2.0
/* One round of ibv_start_poll and ibv_next_poll is taken for all completions, since all messages
 * have arrived. */
#include "messages.h"

int main(void)
{
    begin(16, 64);
    struct ibv_cq_init_attr_ex wanted = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
    struct ibv_cq_ex *own = ibv_create_cq_ex(ctx, &wanted);
    CHECK(own);
    struct ibv_qp *c = make_qp(ibv_cq_ex_to_cq(own), 16), *d = make_qp(cq, 16);
    connect_both(c, d);
    for (int round = 0; round < 10; round++) {
        write_and_wait(c);
        struct ibv_poll_cq_attr none = {0};
        int n = 0;
        for (int rc = ibv_start_poll(own, &none); rc == 0; rc = ibv_next_poll(own)) {
            CHECK(own->status == IBV_WC_SUCCESS);
            n++;
        }
        CHECK(n > 0);
        ibv_end_poll(own);
        CHECK(n == MESSAGES); /* WRONG */
    }
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_qp(d) == 0);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(own)) == 0);
    return end();
}
