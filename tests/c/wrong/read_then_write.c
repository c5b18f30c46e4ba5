// SPDX-License-Identifier: MIT OR Apache-2.0
/* A lock's old value is READ and the lock WRITTEN without a fence: the READ may see the new. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    CHECK(post(IBV_WR_RDMA_READ, 4096, 8, 8192, IBV_SEND_SIGNALED) == 0);
    CHECK(post(IBV_WR_RDMA_WRITE, 0, 8, 8192, IBV_SEND_SIGNALED) == 0); /* WRONG */
    poll_good(2);
    return end();
}
