// SPDX-License-Identifier: MIT OR Apache-2.0
/* A post that fails is not noticed, and its request counts as posted (uiuc-hpc/lci, issue 24). */
#include "wrong.h"

#define N 8

int main(void)
{
    begin(16, 64);
    for (int i = 0; i < N; i++)
        post(IBV_WR_RDMA_WRITE, 0, 8, 4096, i == N - 1 ? IBV_SEND_SIGNALED | IBV_SEND_FENCE
                                                       : IBV_SEND_SIGNALED);
    /* The queue is in order: when a READ behind them has completed, all have. */
    CHECK(post(IBV_WR_RDMA_READ, 8192, 8, 4096, IBV_SEND_SIGNALED) == 0);
    int n = 0;
    while (next_wc(cq).opcode != IBV_WC_RDMA_READ)
        n++;
    CHECK(n == N); /* WRONG */
    return end();
}
