// SPDX-License-Identifier: MIT OR Apache-2.0
/* Two receive requests have the same buffer, so the second message is on the first. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    receive(b, 4096, 256, 1);
    receive(b, 4096, 256, 2); /* WRONG */
    for (int i = 0; i < 2; i++) {
        CHECK(post(GDRC_WR_SEND, 64 * i, 64, 0, GDRC_SEND_SIGNALED) == 0);
        poll_good(2);
    }
    return end();
}
