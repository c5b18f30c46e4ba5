// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * limits [memlock]: a device whose limits a test has made smaller. It shows them, and enforces them
 * whatever call makes the object, as often as it is asked.
 */
#include <string.h>

#include "device.h"

#define MANY 40

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[1 << 18] __attribute__((aligned(4096)));

/* Makes objects until it fails with an errno: `most` of them, also after one of them has ended. */
#define FILL(type, most, make, end, e)                       \
    do {                                                     \
        struct type *all[MANY];                              \
        int n = 0;                                           \
        while (n < MANY && (all[n] = (struct type *)(make))) \
            n++;                                             \
        CHECK(errno == (e) && n == (most));                  \
        for (int again = 0; again < 30; again++)             \
            CHECK(!(make) && errno == (e));                  \
        if (n > 0) {                                         \
            CHECK(end(all[n - 1]) == 0);                     \
            CHECK((all[n - 1] = (struct type *)(make)));     \
        }                                                    \
        while (n > 0)                                        \
            CHECK(end(all[--n]) == 0);                       \
    } while (0)

static struct ibv_qp_init_attr init(void)
{
    return (struct ibv_qp_init_attr){
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}};
}

static struct ibv_qp *qp_ex(void)
{
    struct ibv_qp_init_attr i = init();
    struct ibv_qp_init_attr_ex ex = {.send_cq = cq,
                                     .recv_cq = cq,
                                     .qp_type = IBV_QPT_RC,
                                     .cap = i.cap,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD,
                                     .pd = pd};
    return ibv_create_qp_ex(ctx, &ex);
}

static struct ibv_srq *srq_ex(void)
{
    struct ibv_srq_init_attr_ex ex = {.attr = {.max_wr = 8, .max_sge = 1},
                                      .comp_mask = IBV_SRQ_INIT_ATTR_PD,
                                      .pd = pd};
    return ibv_create_srq_ex(ctx, &ex);
}

static struct ibv_ah *ah(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    CHECK(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
    errno = 0;
    return ibv_create_ah(pd, &attr);
}

static int destroy_cq_ex(struct ibv_cq_ex *ex)
{
    return ibv_destroy_cq(ibv_cq_ex_to_cq(ex));
}

static void numbers(void)
{
    struct ibv_qp_init_attr i = init();
    struct ibv_cq_init_attr_ex ex = {.cqe = 8};
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 8, .max_sge = 1}};
    int flags = IBV_ACCESS_LOCAL_WRITE;
    /* One of each is there already. */
    FILL(ibv_pd, 1, ibv_alloc_pd(ctx), ibv_dealloc_pd, ENOMEM);
    FILL(ibv_cq, 2, ibv_create_cq(ctx, 8, NULL, NULL, 0), ibv_destroy_cq, ENOMEM);
    FILL(ibv_cq_ex, 2, ibv_create_cq_ex(ctx, &ex), destroy_cq_ex, ENOMEM);
    FILL(ibv_qp, 4, ibv_create_qp(pd, &i), ibv_destroy_qp, ENOMEM);
    FILL(ibv_qp, 4, qp_ex(), ibv_destroy_qp, ENOMEM);
    FILL(ibv_srq, 1, ibv_create_srq(pd, &srq), ibv_destroy_srq, ENOMEM);
    FILL(ibv_srq, 1, srq_ex(), ibv_destroy_srq, ENOMEM);
    FILL(ibv_ah, 3, ah(), ibv_destroy_ah, ENOMEM);
    FILL(ibv_mr, 5, ibv_reg_mr(pd, memory, 64, flags), ibv_dereg_mr, ENOMEM);
    FILL(ibv_mr, 5, ibv_alloc_null_mr(pd), ibv_dereg_mr, ENOMEM);
    FILL(ibv_mw, 5, ibv_alloc_mw(pd, IBV_MW_TYPE_1), ibv_dealloc_mw, ENOMEM);
}

/* A queue pair of other sizes; whether it is made. */
static int makes(uint32_t ibv_qp_cap_offset, uint32_t value)
{
    struct ibv_qp_init_attr i = init();
    memcpy((char *)&i.cap + ibv_qp_cap_offset, &value, sizeof value);
    struct ibv_qp *qp = ibv_create_qp(pd, &i);
    CHECK(qp ? ibv_destroy_qp(qp) == 0 : errno == EINVAL);
    return qp != NULL;
}

#define CAP(field) offsetof(struct ibv_qp_cap, field)

static void sizes(void)
{
    CHECK(makes(CAP(max_send_wr), 32) && !makes(CAP(max_send_wr), 33));
    CHECK(makes(CAP(max_recv_wr), 32) && !makes(CAP(max_recv_wr), 33));
    CHECK(makes(CAP(max_send_sge), 2) && !makes(CAP(max_send_sge), 3));
    CHECK(makes(CAP(max_recv_sge), 2) && !makes(CAP(max_recv_sge), 3));
    CHECK(makes(CAP(max_inline_data), 0) && !makes(CAP(max_inline_data), 1));
    struct ibv_qp_init_attr i = init();
    struct ibv_qp *qp = ibv_create_qp(pd, &i);
    CHECK(qp && i.cap.max_inline_data == 0 && ibv_destroy_qp(qp) == 0);
    i.cap.max_send_wr = i.cap.max_recv_wr = 17;
    CHECK((qp = ibv_create_qp(pd, &i)) && i.cap.max_send_wr <= 32 && i.cap.max_recv_wr <= 32);
    CHECK(ibv_destroy_qp(qp) == 0);

    struct ibv_srq_init_attr deep = {.attr = {.max_wr = 33, .max_sge = 1}},
                             wide = {.attr = {.max_wr = 8, .max_sge = 3}};
    CHECK(!ibv_create_srq(pd, &deep) && errno == EINVAL);
    CHECK(!ibv_create_srq(pd, &wide) && errno == EINVAL);
    wide.attr.max_sge = 2;
    struct ibv_srq *srq = ibv_create_srq(pd, &wide);
    struct ibv_srq_attr more = {.max_wr = 33};
    CHECK(srq && ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR) == EINVAL && ibv_destroy_srq(srq) == 0);

    CHECK(!ibv_create_cq(ctx, 65, NULL, NULL, 0) && errno == EINVAL);
    struct ibv_cq *most = ibv_create_cq(ctx, 60, NULL, NULL, 0);
    CHECK(most && most->cqe <= 64);
    CHECK(ibv_resize_cq(most, 65) == EINVAL && ibv_resize_cq(most, 64) == 0 && most->cqe == 64);
    CHECK(ibv_destroy_cq(most) == 0);

    int flags = IBV_ACCESS_LOCAL_WRITE;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 65536, flags);
    CHECK(mr && ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 65537, 0) == -1);
    CHECK(errno == EINVAL && mr->length == 65536 && ibv_dereg_mr(mr) == 0);
    CHECK(!ibv_reg_mr(pd, memory, 65537, flags) && errno == EINVAL);
}

static void attributes(void)
{
    struct ibv_device_attr a;
    CHECK(ibv_query_device(ctx, &a) == 0);
    CHECK(a.max_pd == 2 && a.max_cq == 3 && a.max_qp == 4 && a.max_srq == 1 && a.max_ah == 3);
    CHECK(a.max_mr == 5 && a.max_mw == 5 && a.max_mr_size == 65536 && a.max_cqe == 64);
    CHECK(a.max_qp_wr == 32 && a.max_srq_wr == 32 && a.max_sge == 2 && a.max_srq_sge == 2);
    CHECK(a.max_qp_rd_atom == 2 && a.max_qp_init_rd_atom == 2);
}

/* 16 pages may be locked. */
static void memlock(void)
{
    int flags = IBV_ACCESS_LOCAL_WRITE;
    struct ibv_mr *nine = ibv_reg_mr(pd, memory, 9 * 4096, flags);
    CHECK(nine && !ibv_reg_mr(pd, memory, 8 * 4096, flags) && errno == ENOMEM);
    /* Two pages, of which each has one byte. */
    struct ibv_mr *two = ibv_reg_mr(pd, memory + 4095, 2, flags);
    struct ibv_mr *five = ibv_reg_mr(pd, memory, 5 * 4096, flags);
    CHECK(two && five && !ibv_reg_mr(pd, memory, 1, flags) && errno == ENOMEM);
    /* What is on demand is not locked. */
    struct ibv_mr *free = ibv_reg_mr(pd, memory, sizeof memory, flags | IBV_ACCESS_ON_DEMAND);
    CHECK(free && ibv_dereg_mr(free) == 0);
    CHECK(ibv_rereg_mr(five, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 6 * 4096, 0) == -1);
    CHECK(errno == ENOMEM);
    CHECK(ibv_rereg_mr(five, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 4096, 0) == 0);
    struct ibv_mr *four = ibv_reg_mr(pd, memory, 4 * 4096, flags);
    CHECK(four && !ibv_reg_mr(pd, memory, 1, flags) && ibv_dereg_mr(nine) == 0);
    CHECK((nine = ibv_reg_mr(pd, memory, 9 * 4096, flags)));
}

int main(int argc, char **argv)
{
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    if (argc > 1 && !strcmp(argv[1], "memlock")) {
        memlock();
    } else {
        attributes();
        numbers();
        sizes();
    }
    printf("ok\n");
    return 0;
}
