// Memory windows as programs of NICs bind them: a request names the low byte of the new key, and
// `mw->rkey` has that key when the post returns. Queue pairs of another protection domain than the
// window's bind none. Prints "ok".
#include "rc_pair.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *from, *to;
static char source[64], memory[4096];

static struct ibv_qp *queue_pair(struct ibv_pd *in) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = in,
        .send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_RDMA_WRITE,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);
    CHECK(qp);
    return qp;
}

static struct ibv_mw_bind_info info_of(struct ibv_mr *mr) {
    return (struct ibv_mw_bind_info){.mr = mr,
                                     .addr = (uintptr_t)mr->addr,
                                     .length = 64,
                                     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
}

static struct ibv_send_wr bind_wr(struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr) {
    return (struct ibv_send_wr){.opcode = IBV_WR_BIND_MW,
                                .send_flags = IBV_SEND_SIGNALED,
                                .bind_mw = {.mw = mw, .rkey = rkey, .bind_info = info_of(mr)}};
}

// How a program binds.
enum way { POST, CALLS, BIND };

// Binds a window; the completion waits.
static int bind(enum way way, struct ibv_qp *qp, struct ibv_mw *mw, uint32_t rkey,
                struct ibv_mr *mr) {
    struct ibv_mw_bind_info info = info_of(mr);
    if (way == POST) {
        struct ibv_send_wr wr = bind_wr(mw, rkey, mr), *bad;
        return ibv_post_send(qp, &wr, &bad);
    }
    if (way == BIND) {
        struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED, .bind_info = info};
        return ibv_bind_mw(qp, mw, &b);
    }
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    CHECK(ex);
    ibv_wr_start(ex);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_bind_mw(ex, mw, rkey, &info);
    return ibv_wr_complete(ex);
}

// Binds with a key of which the low byte counts, and writes through the window.
static void binds(enum way way, struct ibv_qp *a, struct ibv_qp *b, uint32_t named) {
    struct ibv_mw *mw = ibv_alloc_mw(pd, way == BIND ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
    CHECK(mw);
    uint32_t key = (mw->rkey & ~0xffu) | ((way == BIND ? mw->rkey + 1 : named) & 0xff);
    CHECK(bind(way, b, mw, named, to) == 0);
    // Before the completion is polled.
    CHECK(mw->rkey == key);
    CHECK(next_wc(cq).status == IBV_WC_SUCCESS);
    memset(memory, 0, sizeof memory);
    CHECK(write_to(a, from, 16, (uintptr_t)memory, key).status == IBV_WC_SUCCESS);
    CHECK(memcmp(memory, source, 16) == 0);
    CHECK(ibv_dealloc_mw(mw) == 0);
}

// A post that is refused leaves the key; of a list, those of the requests that were not posted.
static void refused_posts_change_nothing(void) {
    struct ibv_qp *qp = queue_pair(pd);
    struct ibv_mw *mws[3];
    uint32_t were[3];
    for (int i = 0; i < 3; i++) {
        CHECK((mws[i] = ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
        were[i] = mws[i]->rkey;
    }
    // In RESET.
    CHECK(bind(POST, qp, mws[0], were[0] + 1, to) != 0 && mws[0]->rkey == were[0]);
    CHECK(bind(CALLS, qp, mws[0], were[0] + 1, to) != 0 && mws[0]->rkey == were[0]);
    struct ibv_mw *type1 = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    uint32_t was = type1->rkey;
    CHECK(bind(BIND, qp, type1, 0, to) != 0 && type1->rkey == was);
    CHECK(ibv_dealloc_mw(type1) == 0);
    connect_qp(qp, qp->qp_num, 14);
    // The second request of three is bad; the third is of the first's window.
    struct ibv_send_wr wrs[3], *bad;
    for (int i = 0; i < 3; i++)
        wrs[i] = bind_wr(mws[i % 2], mws[i % 2]->rkey + 1 + i, to);
    wrs[1].opcode = 77;
    wrs[0].next = &wrs[1];
    wrs[1].next = &wrs[2];
    CHECK(ibv_post_send(qp, wrs, &bad) != 0 && bad == &wrs[1]);
    CHECK(mws[0]->rkey == ((were[0] & ~0xffu) | ((were[0] + 1) & 0xff)));
    CHECK(mws[1]->rkey == were[1] && mws[2]->rkey == were[2]);
    CHECK(next_wc(cq).status == IBV_WC_SUCCESS);
    CHECK(ibv_destroy_qp(qp) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(ibv_dealloc_mw(mws[i]) == 0);
}

// A window, a region, or both of another protection domain than the queue pair's.
static void domains(void) {
    struct ibv_pd *other = ibv_alloc_pd(ctx);
    struct ibv_mr *theirs = ibv_reg_mr(other, memory, sizeof memory, REMOTE | IBV_ACCESS_MW_BIND);
    CHECK(other && theirs);
    for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
        for (int which = 1; which < 4; which++) {
            struct ibv_qp *qp = queue_pair(pd);
            connect_qp(qp, qp->qp_num, 14);
            struct ibv_mw *mw = ibv_alloc_mw(which & 1 ? other : pd, type);
            CHECK(mw);
            struct ibv_mr *mr = which & 2 ? theirs : to;
            int posted = bind(type == IBV_MW_TYPE_1 ? BIND : POST, qp, mw, mw->rkey + 1, mr);
            // ibv_bind_mw compares the domains of window and region itself.
            CHECK(posted == (type == IBV_MW_TYPE_1 && which != 3 ? EPERM : 0));
            if (posted == 0)
                CHECK(next_wc(cq).status == IBV_WC_MW_BIND_ERR);
            CHECK(ibv_destroy_qp(qp) == 0 && ibv_dealloc_mw(mw) == 0);
        }
    }
    CHECK(ibv_dereg_mr(theirs) == 0 && ibv_dealloc_pd(other) == 0);
}

int main(void) {
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
    memcpy(source, "through a window", 16);
    CHECK((from = ibv_reg_mr(pd, source, sizeof source, IBV_ACCESS_LOCAL_WRITE)));
    CHECK((to = ibv_reg_mr(pd, memory, sizeof memory, REMOTE | IBV_ACCESS_MW_BIND)));
    struct ibv_qp *a = queue_pair(pd), *b = queue_pair(pd);
    connect_both(a, b);
    uint32_t keys[] = {0xba, 0, 0xff, 0xffffffff, 0x12345678};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
        binds(POST, a, b, keys[i]);
        binds(CALLS, a, b, keys[i]);
    }
    binds(BIND, a, b, 0);
    refused_posts_change_nothing();
    domains();
    puts("ok");
    return 0;
}
