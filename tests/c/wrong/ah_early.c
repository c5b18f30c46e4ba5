// SPDX-License-Identifier: MIT OR Apache-2.0
/* The address handle of a datagram is destroyed before its completion. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    struct ibv_qp *ud = new_qp(pd, cq, IBV_QPT_UD, 4);
    take_to_rts(ud, (struct ibv_qp_attr){.port_num = 1, .qkey = 0x11});
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
    CHECK(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {ah, ud->qp_num, 0x11}},
                       *bad;
    CHECK(ibv_post_send(ud, &wr, &bad) == 0);
    CHECK(ibv_destroy_ah(ah) == 0); /* WRONG */
    poll_good(1);
    CHECK(ibv_destroy_qp(ud) == 0);
    return end();
}
