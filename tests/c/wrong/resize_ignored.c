// SPDX-License-Identifier: MIT OR Apache-2.0
/* A CQ that cannot be resized is used as if it had been (spdk/spdk, issue 1747). */
#include "wrong.h"

#define N 16

int main(void)
{
    begin(64, 2);
    ibv_resize_cq(cq, 64);
    for (int i = 0; i < N; i++)
        CHECK(post(IBV_WR_RDMA_WRITE, 0, 8, 4096, IBV_SEND_SIGNALED) == 0);
    int good = poll_until_event(N);
    CHECK(good == N); /* WRONG */
    return end();
}
