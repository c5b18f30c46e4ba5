// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The number of a request leads into a table, and unsignaled requests have none, since they have no
 * completions: but they have when they fail (Derecho-Project/derecho, issue 141).
 */
#include "wrong.h"

#define N 8

int main(void)
{
    begin(16, 64);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    for (int i = 0; i < N; i++) {
        int is_last = i == N - 1;
        struct ibv_send_wr wr = {.wr_id = is_last ? N - 1 : UINT64_MAX,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = is_last ? IBV_SEND_SIGNALED : 0,
                                 .wr.rdma = {(uintptr_t)memory + 4096, mr->rkey}},
                           *bad;
        CHECK(ibv_post_send(a, &wr, &bad) == 0);
    }
    struct ibv_wc wc = next_wc(cq);
    CHECK(wc.wr_id < N); /* WRONG */
    return end();
}
