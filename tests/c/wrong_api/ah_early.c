// SPDX-License-Identifier: MIT OR Apache-2.0
/* The address handle of a datagram is destroyed before its completion. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_qp ud = make_typed(GDRC_QPT_UD, cq, 4, 0);
    CHECK(connect_one(ud, ud, NULL) == 0);
    gdrc_endpoint own = end_of(ud);
    gdrc_ah_attr to = {0};
    gdrc_ah ah;
    memcpy(to.dgid, own.gid, sizeof to.dgid);
    CHECK(gdrc_ah_create(ctx, pd, &to, &ah) == 0);
    gdrc_sge sge = {(uintptr_t)memory, 64, keys.lkey};
    gdrc_send_wr wr = {.sg_list = &sge,
                       .num_sge = 1,
                       .opcode = GDRC_WR_SEND,
                       .send_flags = GDRC_SEND_SIGNALED,
                       .wr.ud = {ah, own.qpn, own.qkey}};
    const gdrc_send_wr *bad;
    CHECK(gdrc_post_send(ctx, ud, &wr, &bad) == 0);
    CHECK(gdrc_ah_destroy(ctx, ah) == 0); /* WRONG */
    poll_good(1);
    CHECK(gdrc_qp_destroy(ctx, ud) == 0);
    return end();
}
