// SPDX-License-Identifier: MIT OR Apache-2.0
/* Every 32nd request is signaled, in a queue of 16. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    for (int i = 1; i <= 64; i++) {
        unsigned flags = i % 32 == 0 ? IBV_SEND_SIGNALED : 0;
        if (!write_when_free(flags)) /* WRONG */
            break;
        if (flags)
            poll_good(1);
    }
    return end();
}
