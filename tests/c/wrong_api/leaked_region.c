// SPDX-License-Identifier: MIT OR Apache-2.0
/* The region of each message is forgotten; closing the context ends them. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_mr each;
    gdrc_mr_attr attr;
    for (int i = 0; i < 3; i++)
        reg(memory + 4096 * i, 64, GDRC_ACCESS_LOCAL_WRITE, &each, &attr); /* WRONG */
    end_pair();
    CHECK(gdrc_mr_dereg(ctx, mr) == 0 && gdrc_cq_destroy(ctx, cq) == 0);
    CHECK(gdrc_close(ctx, NULL) == 4);
    puts("ok");
    return 0;
}
