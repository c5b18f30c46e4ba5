// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A send queue has a slot for each WRITE, and the SENDs that announce them are posted to it, too
 * (pytorch/tensorpipe, change 414).
 */
#include "wrong.h"

#define CHUNKS 4

int main(void)
{
    begin(CHUNKS, 64);
    int n = 0;
    for (int i = 0; i < CHUNKS; i++) {
        receive(b, 8192 + i * 64, 64, i);
        CHECK(write_when_free(IBV_SEND_SIGNALED) || i > 0);
        int rc = ENOMEM;
        for (int j = 0; j < 10000 && rc == ENOMEM; j++)
            rc = post(IBV_WR_SEND, 64, 8, 0, IBV_SEND_SIGNALED); /* WRONG */
        if (rc)
            break;
        n += 3;
    }
    poll_good(n);
    return end();
}
