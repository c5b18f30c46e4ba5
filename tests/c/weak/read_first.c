// SPDX-License-Identifier: MIT OR Apache-2.0
/* A READ is expected to bring the bytes from before the WRITE behind it, without a fence. */
#include "../wrong/wrong.h"

int main(void)
{
    begin(16, 64);
    for (int round = 1; round <= 100; round++) {
        memset(memory, round, 64);
        CHECK(post(IBV_WR_RDMA_READ, 4096, 64, 8192, IBV_SEND_SIGNALED) == 0);
        CHECK(post(IBV_WR_RDMA_WRITE, 0, 64, 8192, IBV_SEND_SIGNALED) == 0);
        poll_good(2);
        CHECK(memory[4096] == round - 1); /* WRONG */
    }
    return end();
}
