// SPDX-License-Identifier: MIT OR Apache-2.0
/* A region is deregistered while a receive request is on it. */
#include "wrong.h"

static char more[4096] __attribute__((aligned(4096)));

int main(void)
{
    begin(16, 64);
    struct ibv_mr *second = ibv_reg_mr(pd, more, sizeof more, IBV_ACCESS_LOCAL_WRITE);
    CHECK(second);
    struct ibv_sge sge = {(uintptr_t)more, 64, second->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(b, &wr, &bad) == 0);
    CHECK(ibv_dereg_mr(second) == 0); /* WRONG */
    return end();
}
