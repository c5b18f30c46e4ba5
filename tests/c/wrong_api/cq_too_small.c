// SPDX-License-Identifier: MIT OR Apache-2.0
/* More requests will complete than the CQ has entries. */
#include "wrong_api.h"

int main(void)
{
    begin(64, 4);
    for (int i = 0; i < 16; i++)
        CHECK(post(GDRC_WR_RDMA_WRITE, 0, 8, 4096, GDRC_SEND_SIGNALED) == 0); /* WRONG */
    gdrc_wc wc;
    for (int good = 0; good < 16 && !event_waits();)
        good += gdrc_poll_cq(ctx, cq, 1, &wc);
    return end();
}
