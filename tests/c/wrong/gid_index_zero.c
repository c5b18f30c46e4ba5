// SPDX-License-Identifier: MIT OR Apache-2.0
/* GID index 0 without a look at its type: on many NICs it is of RoCE v1. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp *c = make_qp(cq, 4);
    connect_qp(c, a->qp_num, 14); /* WRONG */
    CHECK(ibv_destroy_qp(c) == 0);
    return end();
}
