// SPDX-License-Identifier: MIT OR Apache-2.0
/* Eight requests will complete, and the CQ has room for fewer. */
#include "wrong.h"

int main(void)
{
    begin(64, 4);
    int n = cq->cqe + 1;
    for (int i = 0; i < n; i++)
        CHECK(post(IBV_WR_RDMA_WRITE, 0, 8, 4096, IBV_SEND_SIGNALED) == 0); /* WRONG */
    int good = poll_until_event(n);
    CHECK(good == n || event_waits());
    return end();
}
