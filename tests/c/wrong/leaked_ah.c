// SPDX-License-Identifier: MIT OR Apache-2.0
/* An address handle is made for each peer and never destroyed. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
    CHECK(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
    CHECK(ibv_create_ah(pd, &attr)); /* WRONG */
    end_pair();
    puts("ok");
    return ibv_dereg_mr(mr) | ibv_destroy_cq(cq);
}
