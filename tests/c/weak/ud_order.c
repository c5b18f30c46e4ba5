// SPDX-License-Identifier: MIT OR Apache-2.0
/* Datagrams are expected to arrive all, once and in their order. */
#include "../wrong/wrong.h"

#include <arpa/inet.h>
#include <unistd.h>

#define MESSAGES 200

static struct ibv_qp *make_ud(void)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_UD,
        .cap = {.max_send_wr = 16, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    take_to_rts(qp, (struct ibv_qp_attr){.port_num = 1, .qkey = 0x1234});
    return qp;
}

int main(void)
{
    begin(16, 512);
    struct ibv_qp *from = make_ud(), *to = make_ud();
    struct ibv_ah_attr way = {.is_global = 1, .port_num = 1, .grh.hop_limit = 64};
    CHECK(ibv_query_gid(ctx, 1, 0, &way.grh.dgid) == 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &way);
    CHECK(ah);
    for (int i = 0; i < MESSAGES + 50; i++)
        receive(to, 8192, 64, 1000 + i);
    unsigned expected = 0;
    int ended = 0;
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND_WITH_IMM,
                                 .imm_data = htonl(i),
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr.ud = {ah, to->qp_num, 0x1234}},
                           *bad;
        CHECK(ibv_post_send(from, &wr, &bad) == 0);
        /* One datagram at a time, so that there is always room for it. */
        for (int looks = 0; ended <= i || expected <= (unsigned)i; looks++) {
            struct ibv_wc wc;
            int n = ibv_poll_cq(cq, 1, &wc);
            CHECK(n >= 0 && looks < 1000); /* WRONG */
            if (n == 0) {
                usleep(1000);
                continue;
            }
            CHECK(wc.status == IBV_WC_SUCCESS);
            if (wc.opcode & IBV_WC_RECV)
                CHECK(ntohl(wc.imm_data) == expected++); /* WRONG */
            else
                ended++;
        }
    }
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
    return end();
}
