// SPDX-License-Identifier: MIT OR Apache-2.0
/* What a region covered is read after its end. */
#include "../wrong/wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_mr *volatile cached = ibv_reg_mr(pd, memory, 4096, REMOTE);
    CHECK(cached && ibv_dereg_mr(cached) == 0);
    struct ibv_mr *stale = cached;
    CHECK(stale->addr == memory && stale->length == 4096); /* WRONG */
    return end();
}
