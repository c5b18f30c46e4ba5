// SPDX-License-Identifier: MIT OR Apache-2.0
/* Handles are taken for small numbers, which lead into a table. */
#include "../wrong/wrong.h"

#define REGIONS 16

static struct ibv_mr *regions[REGIONS];

int main(void)
{
    begin(16, 64);
    for (int i = 1; i < REGIONS; i++) {
        struct ibv_mr *next = ibv_reg_mr(pd, memory + 64 * i, 64, REMOTE);
        CHECK(next);
        CHECK(next->handle < REGIONS); /* WRONG */
        regions[next->handle] = next;
    }
    for (int i = 1; i < REGIONS; i++)
        CHECK(ibv_dereg_mr(regions[i]) == 0);
    return end();
}
