// SPDX-License-Identifier: MIT OR Apache-2.0
/* The key of a window that was bound is used when the window is deallocated already. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_mr bound;
    gdrc_mr_attr of_bound;
    gdrc_mw window;
    uint32_t rkey;
    const uint32_t write = GDRC_WR_RDMA_WRITE, signaled = GDRC_SEND_SIGNALED;
    reg(memory, 4096, REMOTE | GDRC_ACCESS_MW_BIND, &bound, &of_bound);
    CHECK(gdrc_mw_alloc(ctx, pd, 2, &window, &rkey) == 0);
    rkey = (rkey & ~0xffu) | ((rkey + 1) & 0xff);
    gdrc_send_wr wr = {.opcode = GDRC_WR_BIND_MW,
                       .send_flags = signaled,
                       .ext.bind_mw = {window, rkey, {bound, (uintptr_t)memory, 64,
                                                      GDRC_ACCESS_REMOTE_WRITE}}};
    const gdrc_send_wr *bad;
    CHECK(gdrc_post_send(ctx, b, &wr, &bad) == 0);
    poll_good(1);
    CHECK(request(a, keys.lkey, write, memory + 4096, 8, memory, rkey, signaled) == 0);
    poll_good(1);
    CHECK(gdrc_mw_dealloc(ctx, window) == 0);
    int rc = request(a, keys.lkey, write, memory + 4096, 8, memory, rkey, signaled); /* WRONG */
    CHECK(rc == 0);
    next_wc(cq);
    CHECK(gdrc_mr_dereg(ctx, bound) == 0);
    return end();
}
