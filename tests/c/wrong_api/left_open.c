// SPDX-License-Identifier: MIT OR Apache-2.0
/* The program ends with its context open, and a CQ in it. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    make_cq(16); /* WRONG */
    end_pair();
    CHECK(gdrc_mr_dereg(ctx, mr) == 0 && gdrc_cq_destroy(ctx, cq) == 0);
    CHECK(gdrc_pd_dealloc(ctx, pd) == 0);
    puts("ok");
    return 0;
}
