// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The key of a region that a peer has is used when the region is deregistered already (caches of
 * registrations do so: ofi-cray/libfabric-cray, issue 1000).
 */
#include "wrong.h"

static char more[4096] __attribute__((aligned(4096)));

int main(void)
{
    begin(16, 64);
    struct ibv_mr *second = ibv_reg_mr(pd, more, sizeof more, REMOTE);
    CHECK(second);
    uint32_t rkey = second->rkey;
    CHECK(write_to(a, mr, 64, (uintptr_t)more, rkey).status == IBV_WC_SUCCESS);
    CHECK(ibv_dereg_mr(second) == 0);
    /* Nobody looks at its status. */
    write_to(a, mr, 64, (uintptr_t)more, rkey); /* WRONG */
    return end();
}
