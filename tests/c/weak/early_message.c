// SPDX-License-Identifier: MIT OR Apache-2.0
/* Takes a message of one word from its receive buffer as soon as that has changed. */
#include "../wrong/wrong.h"

int main(void)
{
    begin(16, 64);
    volatile uint64_t *message = (uint64_t *)memory, *received = (uint64_t *)(memory + 4096);
    for (uint64_t round = 1; round <= 200; round++) {
        *message = round;
        *received = 0;
        receive(b, 4096, 8, round);
        CHECK(post(IBV_WR_SEND, 0, 8, 0, IBV_SEND_SIGNALED) == 0);
        while (*received == 0)
            continue;
        CHECK(*received == round); /* WRONG */
        poll_good(2);
    }
    return end();
}
