// SPDX-License-Identifier: MIT OR Apache-2.0
/* A READ fetches into a buffer that a receive request has. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    receive(a, 4096, 256, 1);
    CHECK(post(IBV_WR_RDMA_READ, 4096, 64, 8192, IBV_SEND_SIGNALED) == 0); /* WRONG */
    poll_good(1);
    return end();
}
