// An extended CQ with every field that the device has: each is read of a SEND's two completions.
// Tag matching, which it lacks, is refused. Prints "ok".
#include <string.h>

#include "rc_pair.h"

enum { SIZE = 24, IMM = 0x1234 };

int main(void) {
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    uint64_t all = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                   IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG |
                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    struct ibv_cq_init_attr_ex init = {.cqe = 8, .wc_flags = all | IBV_WC_EX_WITH_TM_INFO};
    CHECK(!ibv_create_cq_ex(ctx, &init) && errno == EOPNOTSUPP);
    init.wc_flags = all;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &init);
    CHECK(cq);
    struct ibv_qp_init_attr of_qp = {.send_cq = ibv_cq_ex_to_cq(cq),
                                     .recv_cq = ibv_cq_ex_to_cq(cq),
                                     .qp_type = IBV_QPT_RC,
                                     .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &of_qp), *peer = ibv_create_qp(pd, &of_qp);
    CHECK(qp && peer);
    connect_both(qp, peer);
    static char bytes[2 * SIZE];
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    struct ibv_sge from = {(uintptr_t)bytes, SIZE, mr->lkey};
    struct ibv_sge to = {(uintptr_t)bytes + SIZE, SIZE, mr->lkey};
    struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = &to, .num_sge = 1}, *bad_recv;
    CHECK(ibv_post_recv(peer, &recv, &bad_recv) == 0);
    struct ibv_send_wr send = {.wr_id = 2,
                               .sg_list = &from,
                               .num_sge = 1,
                               .opcode = IBV_WR_SEND_WITH_IMM,
                               .send_flags = IBV_SEND_SIGNALED,
                               .imm_data = IMM},
                       *bad;
    CHECK(ibv_post_send(qp, &send, &bad) == 0);
    int seen = 0;
    while (seen != 3) {
        struct ibv_poll_cq_attr attr = {0};
        int none = ibv_start_poll(cq, &attr);
        if (none) {
            CHECK(none == ENOENT);
            continue;
        }
        CHECK(cq->status == IBV_WC_SUCCESS && (cq->wr_id == 1 || cq->wr_id == 2));
        seen |= (int)cq->wr_id;
        CHECK(ibv_wc_read_vendor_err(cq) == 0 && ibv_wc_read_completion_ts(cq) > 0);
        CHECK(ibv_wc_read_completion_wallclock_ns(cq) > ibv_wc_read_completion_ts(cq));
        CHECK(ibv_wc_read_cvlan(cq) == 0 && ibv_wc_read_flow_tag(cq) == 0);
        CHECK(ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 0);
        CHECK(ibv_wc_read_dlid_path_bits(cq) == 0);
        if (cq->wr_id == 1) {
            CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == SIZE);
            CHECK(ibv_wc_read_imm_data(cq) == IMM && ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM);
            CHECK(ibv_wc_read_qp_num(cq) == peer->qp_num);
        } else {
            CHECK(ibv_wc_read_opcode(cq) == IBV_WC_SEND);
            CHECK(ibv_wc_read_qp_num(cq) == qp->qp_num);
        }
        ibv_end_poll(cq);
    }
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_dealloc_pd(pd) == 0);
    puts("ok");
    return 0;
}
