// SPDX-License-Identifier: MIT OR Apache-2.0
/* The buffer of a SEND is filled with the next message before its completion. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    receive(b, 4096, 512, 1);
    receive(b, 8192, 512, 2);
    memset(memory, 1, 64);
    CHECK(post(GDRC_WR_SEND, 0, 64, 0, GDRC_SEND_SIGNALED) == 0); /* WRONG */
    memset(memory, 2, 64);
    CHECK(post(GDRC_WR_SEND, 0, 64, 0, GDRC_SEND_SIGNALED) == 0);
    poll_good(4);
    return end();
}
