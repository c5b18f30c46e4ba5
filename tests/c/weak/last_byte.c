// SPDX-License-Identifier: MIT OR Apache-2.0
/* The receiver of a long WRITE takes its last byte for the end of the message. */
#include "../wrong/wrong.h"

#define LEN 6000

int main(void)
{
    begin(16, 64);
    volatile char *last = memory + 8192 + LEN - 1;
    for (int round = 1; round <= 50; round++) {
        memset(memory, round, LEN);
        CHECK(post(IBV_WR_RDMA_WRITE, 0, LEN, 8192, IBV_SEND_SIGNALED) == 0);
        while (*last != round)
            continue;
        CHECK(memcmp(memory, memory + 8192, LEN) == 0); /* WRONG */
        poll_good(1);
    }
    return end();
}
