// What the man pages of libibverbs say of errors, of return values and of what must hold: each
// function here is named in tests/data/man-pages.tsv beside the sentences that it checks. Prints
// "ok".
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rc_pair.h"

#define IS_NULL(call, e) CHECK((errno = 0, !(call)) && errno == (e))
#define IS_MINUS_ONE(call, e) CHECK((errno = 0, (call) == -1) && errno == (e))

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[8192] __attribute__((aligned(4096)));

static const struct ibv_qp_cap cap = {
    .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};

static struct ibv_qp *create_qp(enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type, .cap = cap};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp && qp->qp_num != 0);
    return qp;
}

static struct ibv_srq *create_srq(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    CHECK(srq);
    return srq;
}

static struct ibv_qp *ud_qp(void)
{
    struct ibv_qp *qp = create_qp(IBV_QPT_UD, NULL);
    take_to_rts(qp, (struct ibv_qp_attr){.port_num = 1});
    return qp;
}

static void a_refused_object_is_null_with_errno(void)
{
    struct ibv_device_attr device;
    CHECK(ibv_query_device(ctx, &device) == 0);
    IS_NULL(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
    IS_NULL(ibv_create_cq(ctx, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
    IS_NULL(ibv_create_cq(ctx, 1, NULL, NULL, ctx->num_comp_vectors), EINVAL);
    IS_NULL(ibv_create_cq(ctx, 1, NULL, NULL, -1), EINVAL);
    struct ibv_cq_init_attr_ex ex = {.cqe = 0};
    IS_NULL(ibv_create_cq_ex(ctx, &ex), EINVAL);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = device.max_srq_wr + 1, .max_sge = 1}};
    IS_NULL(ibv_create_srq(pd, &srq), EINVAL);
    struct ibv_srq_init_attr_ex srq_ex = {
        .attr = srq.attr, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = pd};
    IS_NULL(ibv_create_srq_ex(ctx, &srq_ex), EINVAL);
    struct ibv_qp_init_attr qp = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = cap};
    qp.cap.max_send_wr = device.max_qp_wr + 1;
    IS_NULL(ibv_create_qp(pd, &qp), EINVAL);
    struct ibv_qp_init_attr_ex qp_ex = {.send_cq = cq,
                                        .recv_cq = cq,
                                        .qp_type = IBV_QPT_RC,
                                        .cap = qp.cap,
                                        .comp_mask = IBV_QP_INIT_ATTR_PD,
                                        .pd = pd};
    IS_NULL(ibv_create_qp_ex(ctx, &qp_ex), EINVAL);
    IS_NULL(ibv_alloc_mw(pd, 9), EINVAL);
    struct ibv_ah_attr nowhere = {.is_global = 1, .port_num = 1};
    IS_NULL(ibv_create_ah(pd, &nowhere), EINVAL);
    struct ibv_wc no_grh = {0};
    struct ibv_grh grh = {0};
    CHECK(!ibv_create_ah_from_wc(pd, &no_grh, &grh, 1));
    struct ibv_alloc_dm_attr dm = {.length = 1ull << 50};
    IS_NULL(ibv_alloc_dm(ctx, &dm), ENOMEM);
    struct ibv_parent_domain_init_attr parent = {.pd = NULL};
    IS_NULL(ibv_alloc_parent_domain(ctx, &parent), EINVAL);
    struct ibv_td_init_attr td = {.comp_mask = 1u << 31};
    IS_NULL(ibv_alloc_td(ctx, &td), EOPNOTSUPP);
    IS_NULL(ibv_import_device(-1), EBADF);
    CHECK(!ibv_import_pd(ctx, 999999));
    CHECK(!ibv_import_mr(pd, 999999));
    CHECK(!ibv_import_dm(ctx, 999999));
    IS_NULL(ibv_open_device(NULL), EINVAL);
    struct ibv_qp_open_attr open = {.comp_mask = IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_NUM |
                                                 IBV_QP_OPEN_ATTR_TYPE,
                                    .qp_type = IBV_QPT_XRC_RECV};
    struct ibv_xrcd_init_attr xrcd = {.comp_mask = 3, .fd = -1, .oflags = O_CREAT};
    CHECK((open.xrcd = ibv_open_xrcd(ctx, &xrcd)));
    open.qp_num = 0xabcdef;
    IS_NULL(ibv_open_qp(ctx, &open), ENOENT);
    CHECK(ibv_close_xrcd(open.xrcd) == 0);
}

static void what_the_device_lacks_is_refused(void)
{
    struct ibv_counters_init_attr counters = {0};
    IS_NULL(ibv_create_counters(ctx, &counters), EOPNOTSUPP);
    struct ibv_wq_init_attr wq = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd};
    wq.cq = cq;
    IS_NULL(ibv_create_wq(ctx, &wq), EOPNOTSUPP);
    struct ibv_rwq_ind_table_init_attr table = {0};
    IS_NULL(ibv_create_rwq_ind_table(ctx, &table), EOPNOTSUPP);
    struct ibv_flow_action_esp_attr esp = {0};
    IS_NULL(ibv_create_flow_action_esp(ctx, &esp), EOPNOTSUPP);
    struct ibv_qp *qp = create_qp(IBV_QPT_RC, NULL);
    struct ibv_flow_attr flow = {.size = sizeof flow, .port = 1};
    IS_NULL(ibv_create_flow(qp, &flow), EOPNOTSUPP);
    CHECK(ibv_destroy_qp(qp) == 0);
    struct ibv_srq_init_attr_ex tag = {
        .attr = {.max_wr = 4, .max_sge = 1},
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
                     IBV_SRQ_INIT_ATTR_TM,
        .srq_type = IBV_SRQT_TM,
        .pd = pd,
        .cq = cq,
        .tm_cap = {.max_num_tags = 1, .max_ops = 1}};
    IS_NULL(ibv_create_srq_ex(ctx, &tag), EOPNOTSUPP);
    struct ibv_srq *srq = create_srq();
    struct ibv_ops_wr op = {.opcode = IBV_WR_TAG_SYNC}, *bad;
    CHECK(ibv_post_srq_ops(srq, &op, &bad) == EOPNOTSUPP);
    CHECK(ibv_destroy_srq(srq) == 0);
}

static void what_is_in_use_is_not_destroyed(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    struct ibv_cq *of_channel = ibv_create_cq(ctx, 1, NULL, channel, 0);
    struct ibv_pd *inner = ibv_alloc_pd(ctx);
    CHECK(channel && of_channel && inner);
    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
    CHECK(ibv_destroy_cq(of_channel) == 0 && ibv_destroy_comp_channel(channel) == 0);
    struct ibv_mr *region = ibv_reg_mr(inner, memory, 64, REMOTE);
    CHECK(region && ibv_dealloc_pd(inner) == EBUSY);
    CHECK(ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(inner) == 0);
    struct ibv_srq *srq = create_srq();
    struct ibv_qp *qp = create_qp(IBV_QPT_RC, srq);
    CHECK(ibv_destroy_srq(srq) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);

    struct ibv_xrcd_init_attr attr = {.comp_mask = 3, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &attr);
    struct ibv_qp_init_attr_ex target = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
    CHECK(xrcd && (qp = ibv_create_qp_ex(ctx, &target)));
    CHECK(ibv_close_xrcd(xrcd) == EBUSY);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_close_xrcd(xrcd) == 0);

    struct ibv_td_init_attr none = {0};
    struct ibv_td *td = ibv_alloc_td(ctx, &none);
    struct ibv_parent_domain_init_attr parent = {.pd = pd, .td = td};
    struct ibv_pd *domain = ibv_alloc_parent_domain(ctx, &parent);
    CHECK(td && domain && ibv_dealloc_td(td) == EBUSY);
    CHECK(ibv_dealloc_pd(domain) == 0 && ibv_dealloc_td(td) == 0);
}

static void a_region_with_a_window_stays_and_a_bind_changes_the_key(void)
{
    struct ibv_qp *a = create_qp(IBV_QPT_RC, NULL), *b = create_qp(IBV_QPT_RC, NULL);
    connect_both(a, b);
    struct ibv_mr *region = ibv_reg_mr(pd, memory, 4096, REMOTE | IBV_ACCESS_MW_BIND);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    CHECK(region && mw);
    uint32_t before = mw->rkey;
    struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED,
                               .bind_info = {region, (uintptr_t)memory, 64,
                                             IBV_ACCESS_REMOTE_WRITE}};
    CHECK(ibv_bind_mw(a, mw, &bind) == 0 && mw->rkey != before);
    CHECK(next_wc(cq).status == IBV_WC_SUCCESS);
    CHECK(ibv_dereg_mr(region) == EBUSY);
    // The peer writes by the key of the window, as by a region's.
    CHECK(write_to(b, mr, 8, (uintptr_t)memory, mw->rkey).status == IBV_WC_SUCCESS);
    CHECK(write_to(b, mr, 8, (uintptr_t)memory, before).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(region) == 0);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    // UD has no windows; type 2 is bound by a request alone; the key's low byte is the program's.
    struct ibv_qp *ud = ud_qp();
    bind.bind_info.mr = mr;
    CHECK((mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1)) && ibv_bind_mw(ud, mw, &bind) == EINVAL);
    CHECK(ibv_inc_rkey(0x123456ff) == 0x12345600 && ibv_inc_rkey(7) == 8);
    CHECK(ibv_dealloc_mw(mw) == 0 && ibv_destroy_qp(ud) == 0);
}

static void a_group_holds_its_queue_pair(void)
{
    union ibv_gid gid = {.raw = {[10] = 0xff, 0xff, 239, 77, 0, 1}};
    struct ibv_qp *ud = ud_qp(), *rc = create_qp(IBV_QPT_RC, NULL);
    CHECK(ibv_attach_mcast(rc, &gid, 0) == EINVAL);
    CHECK(ibv_detach_mcast(ud, &gid, 0) == EINVAL);
    // No subnet administrator has to be asked: the host joins the group.
    CHECK(ibv_attach_mcast(ud, &gid, 0) == 0);
    CHECK(ibv_destroy_qp(ud) == EBUSY);
    CHECK(ibv_detach_mcast(ud, &gid, 0) == 0);
    CHECK(ibv_destroy_qp(ud) == 0 && ibv_destroy_qp(rc) == 0);
}

/* What a program leaves behind ends with its device. */
static void a_device_ends_with_a_queue_pair_that_is_in_a_group(void)
{
    union ibv_gid gid = {.raw = {[10] = 0xff, 0xff, 239, 77, 0, 2}};
    struct ibv_context *other = open_device();
    struct ibv_cq *other_cq = ibv_create_cq(other, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = other_cq, .recv_cq = other_cq,
        .qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *left = ibv_create_qp(ibv_alloc_pd(other), &init);
    CHECK(left && ibv_attach_mcast(left, &gid, 0) == 0);
    CHECK(ibv_close_device(other) == 0);
}

static void a_refused_change_changes_nothing(void)
{
    struct ibv_qp *qp = create_qp(IBV_QPT_RC, NULL);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE};
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    struct ibv_qp_init_attr made;
    // Each attribute that a transition needs.
    for (int bit = 1; bit < 1 << 21; bit <<= 1)
        if ((init & bit) && bit != IBV_QP_STATE)
            CHECK(ibv_modify_qp(qp, &a, init & ~bit) == EINVAL);
    a.port_num = 9;
    CHECK(ibv_modify_qp(qp, &a, init) == EINVAL);
    CHECK(ibv_query_qp(qp, &a, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS, &made) == 0);
    CHECK(a.qp_state == IBV_QPS_RESET && a.qp_access_flags == 0);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad = NULL;
    CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
    CHECK(ibv_destroy_qp(qp) == 0);

    struct ibv_srq *srq = create_srq();
    struct ibv_srq_attr now, wrong = {.max_wr = 16, .srq_limit = 99};
    CHECK(ibv_modify_srq(srq, &wrong, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == EINVAL);
    CHECK(ibv_query_srq(srq, &now) == 0 && now.max_wr < 16 && now.srq_limit == 0);
    // An SRQ's requests are posted to it.
    qp = create_qp(IBV_QPT_RC, srq);
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv = NULL;
    CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
    CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
}

static void queues_have_at_least_what_was_asked_for(void)
{
    for (int n = 1; n < 5000; n = n * 3 + 1) {
        struct ibv_cq *c = ibv_create_cq(ctx, n, NULL, NULL, ctx->num_comp_vectors - 1);
        CHECK(c && c->cqe >= n);
        CHECK(ibv_resize_cq(c, 2 * n) == 0 && c->cqe >= 2 * n);
        CHECK(ibv_resize_cq(c, 1) == 0 && c->cqe >= 1);
        CHECK(ibv_destroy_cq(c) == 0);
    }
    // Completions that were not polled stay, or the resize is refused.
    struct ibv_cq *own = ibv_create_cq(ctx, 64, NULL, NULL, 0), *all = cq;
    CHECK(own);
    cq = own;
    struct ibv_qp *a = create_qp(IBV_QPT_RC, NULL), *b = create_qp(IBV_QPT_RC, NULL);
    connect_both(a, b);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)memory + 64, mr->rkey}},
                       *bad;
    for (int i = 0; i < 4; i++)
        CHECK(ibv_post_send(a, &wr, &bad) == 0);
    struct ibv_wc wc;
    CHECK(next_wc(own).status == IBV_WC_SUCCESS && next_wc(own).status == IBV_WC_SUCCESS);
    int rc = ibv_resize_cq(own, 1);
    CHECK(rc == 0 || rc == EINVAL);
    CHECK(next_wc(own).status == IBV_WC_SUCCESS && next_wc(own).status == IBV_WC_SUCCESS);
    CHECK(ibv_poll_cq(own, 1, &wc) == 0 && ibv_poll_cq(own, -1, &wc) < 0);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(own) == 0);
    cq = all;
}

static void minus_one_and_errno(void)
{
    struct ibv_wc wc = {0};
    struct ibv_grh grh = {0};
    struct ibv_ah_attr ah;
    union ibv_gid gid;
    __be16 pkey;
    CHECK(ibv_init_ah_from_wc(ctx, 1, &(struct ibv_wc){.wc_flags = IBV_WC_GRH}, &grh, &ah) == -1);
    // RoCE has no other address of a sender than its GRH.
    CHECK(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &ah) == -1);
    CHECK(ibv_query_gid(ctx, 1, 9999, &gid) == -1);
    CHECK(ibv_query_pkey(ctx, 1, 9999, &pkey) == -1);
    CHECK(ibv_get_pkey_index(ctx, 1, htobe16(0x1234)) == -1);
    CHECK(ibv_get_pkey_index(ctx, 1, htobe16(0xffff)) == 0);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    struct ibv_cq *of;
    void *context;
    CHECK(channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    IS_MINUS_ONE(ibv_get_cq_event(channel, &of, &context), EAGAIN);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
    struct ibv_async_event event;
    int flags = fcntl(ctx->async_fd, F_GETFL);
    CHECK(fcntl(ctx->async_fd, F_SETFL, flags | O_NONBLOCK) == 0);
    IS_MINUS_ONE(ibv_get_async_event(ctx, &event), EAGAIN);
    CHECK(fcntl(ctx->async_fd, F_SETFL, flags) == 0);
}

static void tables_of_gids(void)
{
    struct ibv_gid_entry entry, entries[64];
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    CHECK(ibv_query_device(ctx, &device) == 0 && ibv_query_port(ctx, 1, &port) == 0);
    CHECK(ibv_query_port(ctx, 2, &port) == EINVAL);
    CHECK(ibv_query_gid_ex(ctx, 1, 0, &entry, 0) == 0 && entry.gid_index == 0);
    CHECK(ibv_query_gid_ex(ctx, 1, 0, &entry, 1) == EOPNOTSUPP);
    CHECK(ibv_query_gid_ex(ctx, 1, port.gid_tbl_len, &entry, 0) == EINVAL);
    CHECK(ibv_query_gid_ex(ctx, 1, port.gid_tbl_len - 1, &entry, 0) == ENODATA);
    ssize_t n = ibv_query_gid_table(ctx, entries, 64, 0);
    CHECK(n >= 1 && n <= 64);
    for (ssize_t i = 0; i < n; i++) {
        union ibv_gid gid;
        CHECK(ibv_query_gid(ctx, entries[i].port_num, entries[i].gid_index, &gid) == 0);
        CHECK(memcmp(&gid, &entries[i].gid, sizeof gid) == 0);
    }
    CHECK(ibv_query_gid_table(ctx, entries, 64, 1) == -EOPNOTSUPP);
    CHECK(ibv_query_gid_table(ctx, entries, n - 1, 0) == -EINVAL);
}

static void rights_of_regions(void)
{
    const int remote[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC};
    for (int i = 0; i < 2; i++) {
        IS_NULL(ibv_reg_mr(pd, memory, 64, remote[i]), EINVAL);
        struct ibv_mr *m = ibv_reg_mr(pd, memory, 64, remote[i] | IBV_ACCESS_LOCAL_WRITE);
        CHECK(m && m->addr == memory && m->length == 64 && ibv_dereg_mr(m) == 0);
    }
    IS_NULL(ibv_reg_mr(pd, (void *)4096, 64, 0), EFAULT);
    // A descriptor's offset and the address have one offset in their page.
    int fd = memfd_create("man", 0);
    CHECK(fd >= 0 && ftruncate(fd, 8192) == 0);
    IS_NULL(ibv_reg_dmabuf_mr(pd, 8, 64, 4096, fd, 0), EINVAL);
    struct ibv_mr *of_fd = ibv_reg_dmabuf_mr(pd, 8, 64, 4096 + 8, fd, 0);
    CHECK(of_fd && ibv_dereg_mr(of_fd) == 0 && close(fd) == 0);
    struct ibv_mr *m = ibv_reg_mr(pd, memory, 64, 0);
    CHECK(m);
    CHECK(ibv_rereg_mr(m, 1 << 30, pd, memory, 64, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_TRANSLATION, pd, NULL, 0, 0) ==
          IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_TRANSLATION, pd, memory, 128, 0) == 0);
    CHECK(m->length == 128 && ibv_dereg_mr(m) == 0);
    struct ibv_mr *null = ibv_alloc_null_mr(pd);
    if (null) {
        CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, 0) != 0);
        CHECK(ibv_dereg_mr(null) == 0);
    }
}

static void advice_is_checked(void)
{
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    const enum ib_uverbs_advise_mr_advice read = IBV_ADVISE_MR_ADVICE_PREFETCH;
    CHECK(ibv_advise_mr(pd, read, 0, &sge, 1) == 0);
    CHECK(ibv_advise_mr(pd, read, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == 0);
    CHECK(ibv_advise_mr(pd, read, 1 << 20, &sge, 1) == EINVAL);
    CHECK(ibv_advise_mr(pd, 99, 0, &sge, 1) == EOPNOTSUPP);
    CHECK(ibv_advise_mr(pd, read, 0, NULL, 1) == EINVAL);
    CHECK(ibv_advise_mr(pd, read, 0, &sge, 0) == EINVAL);
}

static void options_that_a_queue_pair_may_have(void)
{
    struct ibv_qp *qp = create_qp(IBV_QPT_RC, NULL), *peer = create_qp(IBV_QPT_RC, NULL);
    struct ibv_ece ece = {0};
    CHECK(ibv_query_ece(qp, &ece) == 0 && ece.options == 0 && ibv_set_ece(qp, &ece) == 0);
    CHECK(ibv_query_ece(qp, NULL) == EINVAL && ibv_set_ece(qp, NULL) == EINVAL);
    struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1000};
    CHECK(ibv_modify_qp_rate_limit(qp, &rate) != 0);
    int ordered = ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0);
    CHECK(ordered == 0 || ordered == 1);
    CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 1u << 31) == 0);
    connect_both(qp, peer);
    CHECK(ibv_modify_qp_rate_limit(qp, &rate) == 0);
    rate.comp_mask = 1;
    CHECK(ibv_modify_qp_rate_limit(qp, &rate) == EINVAL);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
    CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}

static struct ibv_qp_ex *extended(enum ibv_qp_type type, uint64_t ops)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = cap,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = ops};
    struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);
    return qp ? ibv_qp_to_qp_ex(qp) : NULL;
}

static void batches_report_failures_at_their_end(void)
{
    IS_NULL(extended(IBV_QPT_RC, IBV_QP_EX_WITH_TSO), EOPNOTSUPP);
    IS_NULL(extended(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_READ), EOPNOTSUPP);
    struct ibv_qp_ex *qp = extended(IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
    struct ibv_qp *peer = create_qp(IBV_QPT_RC, NULL);
    CHECK(qp);
    connect_both(&qp->qp_base, peer);
    ibv_wr_start(qp);
    for (int i = 0; i < 100; i++) {
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
    }
    CHECK(ibv_wr_complete(qp) != 0);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    // A type without an address needs none, UD needs one.
    CHECK(ibv_destroy_qp(&qp->qp_base) == 0 && ibv_destroy_qp(peer) == 0);
    CHECK((qp = extended(IBV_QPT_UD, IBV_QP_EX_WITH_SEND)));
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(ibv_modify_qp(&qp->qp_base, &a,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    a.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(&qp->qp_base, &a, IBV_QP_STATE) == 0);
    a.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(&qp->qp_base, &a, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
    CHECK(ibv_wr_complete(qp) != 0);
    CHECK(ibv_destroy_qp(&qp->qp_base) == 0);
}

static void names_and_numbers(void)
{
    int n = -1;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n >= 1 && list[n] == NULL);
    CHECK(ibv_get_device_name(list[0]) && ibv_get_device_guid(list[0]) != 0);
    CHECK(ibv_get_device_index(list[0]) >= -1);
    ibv_free_device_list(list);
    CHECK(*ibv_event_type_str(IBV_EVENT_COMM_EST) && *ibv_node_type_str(IBV_NODE_CA));
    CHECK(*ibv_port_state_str(IBV_PORT_ACTIVE));
    CHECK(ibv_rate_to_mbps(IBV_RATE_10_GBPS) == 10000 && ibv_rate_to_mult(IBV_RATE_10_GBPS) == 4);
    CHECK(mbps_to_ibv_rate(10000) == IBV_RATE_10_GBPS && mult_to_ibv_rate(4) == IBV_RATE_10_GBPS);
    CHECK(mbps_to_ibv_rate(1) == IBV_RATE_MAX);
}

static void device_memory_has_bounds(void)
{
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    struct ibv_dm *dm = ibv_alloc_dm(ctx, &attr);
    CHECK(dm);
    CHECK(ibv_memcpy_to_dm(dm, 0, memory, 64) == 0 && ibv_memcpy_from_dm(memory, dm, 0, 64) == 0);
    CHECK(ibv_memcpy_to_dm(dm, 4096, memory, 4) == EINVAL);
    CHECK(ibv_memcpy_to_dm(dm, 0, (void *)4096, 4) == EFAULT);
    IS_NULL(ibv_reg_dm_mr(pd, dm, 4096, 64, IBV_ACCESS_ZERO_BASED), EINVAL);
    IS_NULL(ibv_reg_dm_mr(pd, dm, 0, 64, 0), EINVAL);
    struct ibv_mr *m = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED);
    CHECK(m);
    CHECK(ibv_dereg_mr(m) == 0 && ibv_free_dm(dm) == 0);
}

static void domains_by_files(void)
{
    char name[] = "/tmp/gdrcore-man-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    struct ibv_xrcd_init_attr attr = {.comp_mask = 3, .fd = fd, .oflags = O_CREAT};
    struct ibv_xrcd *first = ibv_open_xrcd(ctx, &attr);
    CHECK(first);
    attr.oflags = O_CREAT | O_EXCL;
    CHECK(!ibv_open_xrcd(ctx, &attr));
    CHECK(ibv_close_xrcd(first) == 0 && close(fd) == 0);
}

int main(void)
{
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 256, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE)));
    void (*const all[])(void) = {
        a_refused_object_is_null_with_errno,
        what_the_device_lacks_is_refused,
        what_is_in_use_is_not_destroyed,
        a_region_with_a_window_stays_and_a_bind_changes_the_key,
        a_group_holds_its_queue_pair,
        a_device_ends_with_a_queue_pair_that_is_in_a_group,
        a_refused_change_changes_nothing,
        queues_have_at_least_what_was_asked_for,
        minus_one_and_errno,
        tables_of_gids,
        rights_of_regions,
        advice_is_checked,
        options_that_a_queue_pair_may_have,
        batches_report_failures_at_their_end,
        names_and_numbers,
        device_memory_has_bounds,
        domains_by_files,
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        all[i]();
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(ctx) == 0);
    puts("ok");
    return 0;
}
