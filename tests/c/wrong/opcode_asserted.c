// SPDX-License-Identifier: MIT OR Apache-2.0
/* The opcode of each completion is checked before its status (spdk/spdk, issue 3214). */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    for (int i = 0; i < 4; i++)
        CHECK(post(IBV_WR_RDMA_READ, i * 64, 64, 4096, IBV_SEND_SIGNALED) == 0);
    for (int i = 0; i < 4; i++) {
        struct ibv_wc wc = next_wc(cq);
        CHECK(wc.opcode == IBV_WC_RDMA_READ); /* WRONG */
        if (wc.status)
            puts("failed");
    }
    return end();
}
