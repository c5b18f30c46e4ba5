// SPDX-License-Identifier: MIT OR Apache-2.0
/* Inline data of 128 bytes; hns has 32. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_qp c = make_typed(GDRC_QPT_RC, cq, 1, 128); /* WRONG */
    CHECK(gdrc_qp_destroy(ctx, c) == 0);
    return end();
}
