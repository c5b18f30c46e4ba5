// SPDX-License-Identifier: MIT OR Apache-2.0
/* A receive buffer is cleared after it was posted, not before. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    memset(memory + 4096, 0xff, 256);
    receive(b, 4096, 256, 1); /* WRONG */
    memset(memory + 4096, 0, 256);
    CHECK(post(GDRC_WR_SEND, 0, 64, 0, GDRC_SEND_SIGNALED) == 0);
    poll_good(2);
    return end();
}
