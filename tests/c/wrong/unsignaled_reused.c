// SPDX-License-Identifier: MIT OR Apache-2.0
/* The buffer of an unsignaled WRITE is reused at once: no completion has told its end. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    for (int i = 0; i < 4; i++) {
        memset(memory, i, 64);
        unsigned flags = i == 3 ? IBV_SEND_SIGNALED : 0;
        CHECK(post(IBV_WR_RDMA_WRITE, 0, 64, 4096 + 64 * i, flags) == 0); /* WRONG */
    }
    poll_good(1);
    return end();
}
