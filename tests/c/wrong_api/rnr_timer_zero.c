// SPDX-License-Identifier: MIT OR Apache-2.0
/* min_rnr_timer is left 0, which is the longest. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_qp c = make_qp(cq, 16), d = make_qp(cq, 16);
    gdrc_qp_connect_opts opts = {.struct_size = sizeof opts,
                                 .flags = GDRC_QP_CONNECT_EXACT,
                                 .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    CHECK(connect_one(c, d, &opts) == 0); /* WRONG */
    CHECK(gdrc_qp_destroy(ctx, c) == 0 && gdrc_qp_destroy(ctx, d) == 0);
    return end();
}
