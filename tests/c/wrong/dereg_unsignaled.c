// SPDX-License-Identifier: MIT OR Apache-2.0
/* The region of an unsignaled WRITE is deregistered: nothing has told its end. */
#include "wrong.h"

static char more[4096] __attribute__((aligned(4096)));

int main(void)
{
    begin(16, 64);
    struct ibv_mr *second = ibv_reg_mr(pd, more, sizeof more, IBV_ACCESS_LOCAL_WRITE);
    CHECK(second);
    CHECK(request(a, second, IBV_WR_RDMA_WRITE, more, 64, 4096, 0) == 0);
    CHECK(ibv_dereg_mr(second) == 0); /* WRONG */
    return end();
}
