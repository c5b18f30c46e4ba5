/*
 * ibv_wr_flush on the drop-in, which headers before rdma-core 45 do not have: its numbers, and the
 * pointer behind those of Debian 12's struct ibv_qp_ex. Prints "ok".
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rc_pair.h"

enum {
    WC_FLUSH_OP = 8,
    FLUSH_IS_GLOBAL = 1,
    FLUSH_IS_PERSISTENT = 2,
    LEVEL_RANGE = 0,
    LEVEL_MR = 1,
    WITH_FLUSH = 1 << 11,
    ACCESS_GLOBAL = 1 << 8,
    ACCESS_PERSISTENT = 1 << 9,
};

typedef void (*flush_fn)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char bytes[8192];

static flush_fn flush_of(struct ibv_qp_ex *qp)
{
    flush_fn found;
    memcpy(&found, (char *)&qp->wr_atomic_write + sizeof qp->wr_atomic_write, sizeof found);
    return found;
}

static struct ibv_qp *create(enum ibv_qp_type type, uint64_t ops)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = type,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = ops};
    return ibv_create_qp_ex(ctx, &init);
}

/* Connects a queue pair with another, whose peer has these rights. */
static void connect_with(struct ibv_qp *qp, uint32_t to, unsigned access)
{
    struct ibv_qp_attr a = towards(ctx, to);
    a.qp_access_flags = access;
    take_to_rts(qp, a);
}

/* A queue pair that posts, connected with one that has these rights. */
static struct ibv_qp *connected(unsigned access, struct ibv_qp **peer)
{
    struct ibv_qp *qp = create(IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | WITH_FLUSH);
    CHECK(qp && flush_of(ibv_qp_to_qp_ex(qp)));
    CHECK(*peer = create(IBV_QPT_RC, 0));
    connect_with(*peer, qp->qp_num, access);
    connect_with(qp, (*peer)->qp_num, 0);
    return qp;
}

static void destroy(struct ibv_qp *qp, struct ibv_qp *peer)
{
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

/* A WRITE and a FLUSH in one batch; returns how the FLUSH has ended. */
static struct ibv_wc flush(struct ibv_qp *of, struct ibv_mr *mr, size_t length, uint8_t type,
                           uint8_t level)
{
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(of);
    memset(bytes, 0x5a, 4096);
    memset(bytes + 4096, 0, 4096);
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = 0;
    ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)bytes + 4096);
    ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)bytes, 4096);
    qp->wr_id = 2;
    qp->wr_flags = IBV_SEND_SIGNALED;
    flush_of(qp)(qp, mr->rkey, (uintptr_t)bytes + 4096, length, type, level);
    CHECK(ibv_wr_complete(qp) == 0);
    struct ibv_wc wc = next_wc(cq);
    CHECK(wc.wr_id == 2);
    CHECK(memcmp(bytes, bytes + 4096, 4096) == 0);
    return wc;
}

static void is_refused(uint8_t type, uint8_t level, size_t length, int why)
{
    struct ibv_qp *peer, *of = connected(ACCESS_GLOBAL, &peer);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(of);
    ibv_wr_start(qp);
    flush_of(qp)(qp, 1, 0, length, type, level);
    CHECK(ibv_wr_complete(qp) == why);
    destroy(of, peer);
}

int main(void)
{
    ctx = open_device();
    struct ibv_device_attr_ex caps;
    CHECK(ibv_query_device_ex(ctx, NULL, &caps) == 0);
    CHECK(caps.device_cap_flags_ex & 1ull << 38 && !(caps.device_cap_flags_ex & 1ull << 39));
    CHECK(caps.odp_caps.per_transport_caps.rc_odp_caps & 1 << 6);
    CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));

    /* Nothing here survives a loss of power. */
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    errno = 0;
    CHECK(!ibv_reg_mr(pd, bytes, sizeof bytes, access | ACCESS_PERSISTENT) && errno == EINVAL);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, access | ACCESS_GLOBAL);
    struct ibv_mr *plain = ibv_reg_mr(pd, bytes, sizeof bytes, access);
    CHECK(mr && plain);

    /* Of the transports RC alone has it, and only who asks for it. */
    errno = 0;
    CHECK(!create(IBV_QPT_UC, WITH_FLUSH) && errno == EOPNOTSUPP);
    CHECK(!create(IBV_QPT_UD, WITH_FLUSH) && errno == EOPNOTSUPP);
    struct ibv_qp *without = create(IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE);
    CHECK(without && !flush_of(ibv_qp_to_qp_ex(without)) && ibv_destroy_qp(without) == 0);

    unsigned rights = IBV_ACCESS_REMOTE_WRITE | ACCESS_GLOBAL | ACCESS_PERSISTENT;
    struct ibv_qp *peer, *qp = connected(rights, &peer);
    static const struct {
        size_t length;
        uint8_t level;
    } good[] = {{4096, LEVEL_RANGE}, {0, LEVEL_RANGE}, {0, LEVEL_MR}, {~(size_t)0, LEVEL_MR}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct ibv_wc wc = flush(qp, mr, good[i].length, FLUSH_IS_GLOBAL, good[i].level);
        CHECK(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == WC_FLUSH_OP);
    }
    CHECK(flush(qp, mr, 4096, FLUSH_IS_PERSISTENT, LEVEL_RANGE).status == IBV_WC_REM_ACCESS_ERR);
    destroy(qp, peer);

    /* The region does not allow it. */
    qp = connected(rights, &peer);
    CHECK(flush(qp, plain, 4096, FLUSH_IS_GLOBAL, LEVEL_MR).status == IBV_WC_REM_ACCESS_ERR);
    destroy(qp, peer);
    /* The queue pair does not. */
    qp = connected(IBV_ACCESS_REMOTE_WRITE, &peer);
    CHECK(flush(qp, mr, 4096, FLUSH_IS_GLOBAL, LEVEL_MR).status == IBV_WC_REM_INV_REQ_ERR);
    destroy(qp, peer);

    is_refused(0, LEVEL_RANGE, 8, EINVAL);
    is_refused(4, LEVEL_RANGE, 8, EINVAL);
    is_refused(FLUSH_IS_GLOBAL, 2, 8, EINVAL);
    is_refused(FLUSH_IS_GLOBAL, LEVEL_RANGE, (size_t)1 << 32, EMSGSIZE);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(plain) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    puts("ok");
    return 0;
}
