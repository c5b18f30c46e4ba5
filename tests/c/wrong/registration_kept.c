// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A region makes room for a larger one; when that cannot be registered, the key of the first stays
 * in use (ofiwg/libfabric, issue 5647).
 */
#include "wrong.h"

static char more[8192] __attribute__((aligned(4096)));

int main(void)
{
    begin(16, 64);
    struct ibv_mr *own = ibv_reg_mr(pd, more, 4096, REMOTE), *larger;
    CHECK(own);
    uint32_t lkey = own->lkey;
    CHECK(ibv_dereg_mr(own) == 0);
    if ((larger = ibv_reg_mr(pd, more, sizeof more, REMOTE)))
        lkey = larger->lkey;
    struct ibv_sge sge = {(uintptr_t)more, 64, lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .wr.rdma = {(uintptr_t)memory, mr->rkey}};
    CHECK(done(a, wr).status == IBV_WC_SUCCESS); /* WRONG */
    end_pair();
    CHECK(ibv_dereg_mr(larger) == 0);
    end_rest();
    puts("ok");
    return 0;
}
