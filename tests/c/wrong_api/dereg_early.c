// SPDX-License-Identifier: MIT OR Apache-2.0
/* A region is deregistered while a receive request is on it. */
#include "wrong_api.h"

static char more[4096] __attribute__((aligned(4096)));

int main(void)
{
    begin(16, 64);
    gdrc_mr second;
    gdrc_mr_attr of_second;
    reg(more, sizeof more, GDRC_ACCESS_LOCAL_WRITE, &second, &of_second);
    gdrc_sge sge = {(uintptr_t)more, 64, of_second.lkey};
    gdrc_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
    const gdrc_recv_wr *bad;
    CHECK(gdrc_post_recv(ctx, b, &wr, &bad) == 0);
    CHECK(gdrc_mr_dereg(ctx, second) == 0); /* WRONG */
    return end();
}
