// SPDX-License-Identifier: MIT OR Apache-2.0
/* The region of each message is forgotten. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    for (int i = 0; i < 3; i++)
        CHECK(ibv_reg_mr(pd, memory + 4096 * i, 64, IBV_ACCESS_LOCAL_WRITE)); /* WRONG */
    end_pair();
    puts("ok");
    return ibv_dereg_mr(mr) | ibv_destroy_cq(cq);
}
