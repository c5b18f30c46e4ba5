// SPDX-License-Identifier: MIT OR Apache-2.0
/* A SEND invalidates the key of the peer's window, and a WRITE behind it names that key. */
#include "wrong.h"

static char more[4096] __attribute__((aligned(4096)));

int main(void)
{
    begin(16, 64);
    struct ibv_mr *second = ibv_reg_mr(pd, more, sizeof more, REMOTE | IBV_ACCESS_MW_BIND);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(second && mw);
    struct ibv_mw_bind_info info = {second, (uintptr_t)more, 64, IBV_ACCESS_REMOTE_WRITE};
    struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW,
                               .bind_mw = {.mw = mw, .rkey = mw->rkey + 1, .bind_info = info}};
    CHECK(done(b, bind).status == IBV_WC_SUCCESS);
    CHECK(write_to(a, mr, 64, (uintptr_t)more, mw->rkey).status == IBV_WC_SUCCESS);
    receive(b, 8192, 64, 1);
    struct ibv_send_wr last = {.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = mw->rkey};
    CHECK(done(a, last).status == IBV_WC_SUCCESS && next_wc(cq).status == IBV_WC_SUCCESS);
    /* Nobody looks at its status. */
    write_to(a, mr, 64, (uintptr_t)more, mw->rkey); /* WRONG */
    end_pair();
    CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(second) == 0);
    end_rest();
    puts("ok");
    return 0;
}
