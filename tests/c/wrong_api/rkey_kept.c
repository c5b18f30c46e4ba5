// SPDX-License-Identifier: MIT OR Apache-2.0
/* The key of a region that a peer has is used when the region is deregistered already. */
#include "wrong_api.h"

static char more[4096] __attribute__((aligned(4096)));

int main(void)
{
    begin(16, 64);
    gdrc_mr second;
    gdrc_mr_attr old;
    const uint32_t write = GDRC_WR_RDMA_WRITE, signaled = GDRC_SEND_SIGNALED;
    reg(more, sizeof more, REMOTE, &second, &old);
    CHECK(request(a, keys.lkey, write, memory, 64, more, old.rkey, signaled) == 0);
    poll_good(1);
    CHECK(gdrc_mr_dereg(ctx, second) == 0);
    CHECK(request(a, keys.lkey, write, memory, 64, more, old.rkey, signaled) == 0); /* WRONG */
    /* Nobody looks at its status. */
    next_wc(cq);
    return end();
}
