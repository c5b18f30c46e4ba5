// SPDX-License-Identifier: MIT OR Apache-2.0
/* min_rnr_timer is left 0, which is the longest time and not the shortest. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp_attr x = {.min_rnr_timer = 0};
    CHECK(ibv_modify_qp(a, &x, IBV_QP_MIN_RNR_TIMER) == 0); /* WRONG */
    return end();
}
