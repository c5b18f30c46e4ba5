// What the man pages say is ignored, may be larger than asked for, or is a hint: arguments of any
// bits where a call does not look at them, and all of what a size promises is there. Prints "ok".
#include <stddef.h>

#include "rc_pair.h"

static struct ibv_context *ctx;
static struct ibv_device_attr device;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static char memory[4096];

static const struct ibv_qp_cap small = {
    .max_send_wr = 3, .max_recv_wr = 3, .max_send_sge = 1, .max_recv_sge = 1};

static int post_recv(struct ibv_qp *qp, struct ibv_srq *to, int pieces) {
    struct ibv_sge sge[64];
    for (int i = 0; i < pieces; i++)
        sge[i] = (struct ibv_sge){(uintptr_t)memory, 1, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = pieces ? sge : (void *)1, .num_sge = pieces}, *bad;
    return to ? ibv_post_srq_recv(to, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

// Sizes of queues that a queue pair does not have, of any bits.
static void sizes_of_no_queue(void) {
    const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    const uint32_t sizes[] = {0, 1, device.max_qp_wr, device.max_qp_wr + 1, 0xffffffff};
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 25; i++) {
            struct ibv_qp_init_attr init = {
                .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = types[t], .cap = small};
            init.cap.max_recv_wr = sizes[i % 5];
            init.cap.max_recv_sge = sizes[i / 5];
            struct ibv_qp *qp = ibv_create_qp(pd, &init);
            CHECK(qp && init.cap.max_send_wr >= 3);
            CHECK(init.cap.max_recv_wr == 0 && init.cap.max_recv_sge == 0);
            CHECK(ibv_destroy_qp(qp) == 0);
        }
        // Those of queues that it has are refused.
        for (int i = 0; i < 5; i++) {
            struct ibv_qp_init_attr init = {
                .send_cq = cq, .recv_cq = cq, .qp_type = types[t], .cap = small};
            uint32_t *size[] = {&init.cap.max_send_wr, &init.cap.max_recv_wr,
                                &init.cap.max_send_sge, &init.cap.max_recv_sge,
                                &init.cap.max_inline_data};
            *size[i] = 0xffffffff;
            CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
        }
    }
}

// Nor are they memory, when a device grows.
static void many_without_receives(void) {
    static struct ibv_qp *all[1500];
    const int n = sizeof all / sizeof *all;
    for (int i = 0; i < n; i++) {
        struct ibv_qp_init_attr init = {
            .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = small};
        init.cap.max_recv_wr = init.cap.max_recv_sge = 0xffffffff;
        CHECK((all[i] = ibv_create_qp(pd, &init)));
    }
    for (int i = 0; i < n; i++)
        CHECK(ibv_destroy_qp(all[i]) == 0);
}

// An initiator of XRC has no receives, and a target nothing but its domain.
static void xrc(void) {
    struct ibv_xrcd_init_attr of = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &of);
    CHECK(xrcd);
    struct ibv_qp_init_attr_ex init;
    memset(&init, 0x5a, sizeof init);
    init.qp_type = IBV_QPT_XRC_SEND;
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = pd;
    init.send_cq = cq;
    init.cap.max_send_wr = init.cap.max_send_sge = 1;
    init.cap.max_inline_data = 0;
    struct ibv_qp *sends = ibv_create_qp_ex(ctx, &init);
    CHECK(sends && init.cap.max_recv_wr == 0);
    memset(&init, 0xff, sizeof init);
    init.qp_type = IBV_QPT_XRC_RECV;
    init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    init.xrcd = xrcd;
    struct ibv_qp *receives = ibv_create_qp_ex(ctx, &init);
    CHECK(receives && ibv_destroy_qp(sends) == 0 && ibv_destroy_qp(receives) == 0);
    CHECK(ibv_close_xrcd(xrcd) == 0);
}

// Sizes are at least those asked for, and all of what is given can be used.
static void given_sizes(void) {
    for (uint32_t n = 0; n < 20; n++) {
        struct ibv_qp_init_attr init = {
            .send_cq = cq,
            .recv_cq = cq,
            .qp_type = IBV_QPT_RC,
            .cap = {n, n, n % 4, n % 4, 3 * n}};
        struct ibv_qp_cap asked = init.cap;
        struct ibv_qp *qp = ibv_create_qp(pd, &init);
        CHECK(qp && init.cap.max_send_wr >= asked.max_send_wr);
        CHECK(init.cap.max_recv_wr >= asked.max_recv_wr);
        CHECK(init.cap.max_send_sge >= asked.max_send_sge);
        CHECK(init.cap.max_recv_sge >= asked.max_recv_sge);
        CHECK(init.cap.max_inline_data >= asked.max_inline_data);
        struct ibv_qp_attr a;
        struct ibv_qp_init_attr also;
        // A mask of a query is a hint.
        CHECK(ibv_query_qp(qp, &a, 0, &also) == 0 && a.qp_state == IBV_QPS_RESET);
        CHECK(memcmp(&also.cap, &init.cap, sizeof init.cap) == 0);
        CHECK(memcmp(&a.cap, &init.cap, sizeof init.cap) == 0);
        a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
        CHECK(ibv_modify_qp(qp, &a,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                IBV_QP_ACCESS_FLAGS) == 0);
        for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
            CHECK(post_recv(qp, NULL, init.cap.max_recv_sge) == 0);
        CHECK(post_recv(qp, NULL, 0) == ENOMEM);
        CHECK(ibv_destroy_qp(qp) == 0);

        struct ibv_srq_init_attr shared = {.attr = {n + 1, n % 4, 0xffffffff}};
        struct ibv_srq *other = ibv_create_srq(pd, &shared);
        CHECK(other && shared.attr.max_wr >= n + 1 && shared.attr.max_sge >= n % 4);
        struct ibv_srq_attr now;
        CHECK(ibv_query_srq(other, &now) == 0 && now.srq_limit == 0);
        CHECK(now.max_wr == shared.attr.max_wr && now.max_sge == shared.attr.max_sge);
        for (uint32_t i = 0; i < now.max_wr; i++)
            CHECK(post_recv(NULL, other, now.max_sge) == 0);
        CHECK(post_recv(NULL, other, 0) == ENOMEM);
        // Larger, with a limit that is not in the mask.
        now = (struct ibv_srq_attr){.max_wr = 2 * now.max_wr + 1, .srq_limit = 0xffffffff};
        uint32_t wanted = now.max_wr;
        CHECK(ibv_modify_srq(other, &now, IBV_SRQ_MAX_WR) == 0);
        CHECK(ibv_query_srq(other, &now) == 0 && now.max_wr >= wanted && now.srq_limit == 0);
        now.max_wr = 0;
        now.srq_limit = 1;
        CHECK(ibv_modify_srq(other, &now, IBV_SRQ_LIMIT) == 0);
        CHECK(ibv_query_srq(other, &now) == 0 && now.max_wr >= wanted && now.srq_limit == 1);
        CHECK(ibv_destroy_srq(other) == 0);

        struct ibv_cq *some = ibv_create_cq(ctx, n + 1, NULL, NULL, n % ctx->num_comp_vectors);
        CHECK(some && some->cqe >= (int)n + 1);
        CHECK(ibv_resize_cq(some, 3 * n + 5) == 0 && some->cqe >= (int)(3 * n + 5));
        CHECK(ibv_destroy_cq(some) == 0);
    }
}

// A CQ is not made smaller than what waits in it.
static void resized(void) {
    struct ibv_cq *own = ibv_create_cq(ctx, 64, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = own,
        .recv_cq = own,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(own && qp);
    connect_qp(qp, qp->qp_num, 14);
    struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {(uintptr_t)memory, mr->rkey}};
    for (int i = 0; i < 10; i++) {
        wr.wr_id = i;
        CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    }
    int was = own->cqe;
    CHECK(ibv_resize_cq(own, 4) == EINVAL && own->cqe == was);
    CHECK(ibv_resize_cq(own, 16) == 0 && own->cqe >= 16);
    for (int i = 0; i < 10; i++)
        CHECK(next_wc(own).wr_id == (uint64_t)i);
    CHECK(ibv_resize_cq(own, 4) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(own) == 0);
}

// Attributes that a mask does not name, and fields that RoCE does not have, of any bits.
static struct ibv_qp *connected_by(int garbage) {
    union ibv_gid gid;
    CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
    struct ibv_qp_init_attr init;
    memset(&init, garbage, sizeof init);
    init.send_cq = init.recv_cq = cq;
    init.srq = NULL;
    init.qp_type = IBV_QPT_RC;
    init.cap = small;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    struct ibv_qp_attr a;
    memset(&a, garbage, sizeof a);
    a.port_num = 1;
    a.pkey_index = 0;
    a.qp_access_flags |= REMOTE;
    take_to(qp, IBV_QPS_INIT, a);
    memset(&a, garbage, sizeof a);
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = qp->qp_num;
    a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 1;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = gid;
    a.ah_attr.grh.sgid_index = 0;
    take_to(qp, IBV_QPS_RTR, a);
    memset(&a, garbage, sizeof a);
    a.sq_psn = garbage * 0x01010101u;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 7;
    a.max_rd_atomic = 1;
    take_to(qp, IBV_QPS_RTS, a);
    return qp;
}

// Parts of a request that its operation does not have.
static void requests_by(struct ibv_qp *qp, int garbage) {
    struct ibv_send_wr wr, *bad;
    memset(&wr, garbage, sizeof wr);
    wr.next = NULL;
    wr.num_sge = 0;
    wr.opcode = IBV_WR_SEND;
    // Checksums are of datagrams; SOLICITED and FENCE have no effect here.
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM | IBV_SEND_SOLICITED | IBV_SEND_FENCE;
    CHECK(post_recv(qp, NULL, 1) == 0);
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next_wc(cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (wc.opcode == IBV_WC_SEND ? wr.wr_id : 0));
    }
    // No bytes: neither the piece's key nor the peer's is looked at.
    struct ibv_sge none = {~0ull, 0, ~0u};
    wr.sg_list = &none;
    wr.num_sge = 1;
    wr.opcode = garbage & 1 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0 && next_wc(cq).status == IBV_WC_SUCCESS);
}

// The fields of an address vector that RoCE does not have.
static void address_handles(int garbage) {
    union ibv_gid gid;
    CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
    struct ibv_ah_attr a;
    memset(&a, garbage, sizeof a);
    a.is_global = 1;
    a.port_num = 1;
    a.grh.dgid = gid;
    a.grh.sgid_index = 0;
    struct ibv_ah *ah = ibv_create_ah(pd, &a);
    CHECK(ah && ibv_destroy_ah(ah) == 0);
}

int main(void) {
    ctx = open_device();
    CHECK(ibv_query_device(ctx, &device) == 0);
    CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE)));
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 4, .max_sge = 1}};
    CHECK((srq = ibv_create_srq(pd, &shared)));
    sizes_of_no_queue();
    many_without_receives();
    xrc();
    given_sizes();
    resized();
    for (int garbage = 0; garbage < 256; garbage += 5) {
        struct ibv_qp *qp = connected_by(garbage);
        requests_by(qp, garbage);
        CHECK(ibv_destroy_qp(qp) == 0);
        address_handles(garbage);
    }
    puts("ok");
    return 0;
}
