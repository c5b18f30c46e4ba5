// SPDX-License-Identifier: MIT OR Apache-2.0
/* Every request is signaled, and none is polled: slots are free only after a poll. */
#include "wrong.h"

int main(void)
{
    begin(4, 64);
    for (int i = 0; i < 16; i++)
        if (!write_when_free(IBV_SEND_SIGNALED)) /* WRONG */
            break;
    return end();
}
