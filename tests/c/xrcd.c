/*
 * XRC domains and handles of targets on the drop-in: what is counted, what is refused. Prints "ok".
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

#define REFUSED(x, why) CHECK((errno = 0, (x) == NULL) && errno == (why))

static struct ibv_context *ctx;

static struct ibv_xrcd *domain(int fd, int oflags)
{
    struct ibv_xrcd_init_attr init = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags};
    return ibv_open_xrcd(ctx, &init);
}

static struct ibv_qp *target(struct ibv_xrcd *xrcd, uint32_t mask)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = mask, .xrcd = xrcd};
    return ibv_create_qp_ex(ctx, &init);
}

static struct ibv_qp *opened(struct ibv_xrcd *xrcd, uint32_t number, enum ibv_qp_type type)
{
    struct ibv_qp_open_attr attr = {
        .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
        .qp_num = number,
        .xrcd = xrcd,
        .qp_type = type};
    return ibv_open_qp(ctx, &attr);
}

int main(void)
{
    ctx = open_device();
    struct ibv_device_attr caps;
    CHECK(ibv_query_device(ctx, &caps) == 0 && caps.device_cap_flags & IBV_DEVICE_XRC);
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
    CHECK(pd && cq);

    /* A file names one domain of the process, however often it is opened. */
    char name[] = "/tmp/gdrcore-xrcd-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    REFUSED(domain(fd, 0), EAGAIN);
    REFUSED(domain(12345, O_CREAT), EBADF);
    REFUSED(domain(fd, O_RDWR), EINVAL);
    struct ibv_xrcd *one = domain(fd, O_CREAT | O_EXCL);
    struct ibv_xrcd *same = domain(fd, O_CREAT), *again = domain(dup(fd), 0);
    struct ibv_xrcd *other = domain(-1, O_CREAT);
    CHECK(one && same && again && other);
    REFUSED(domain(fd, O_CREAT | O_EXCL), EINVAL);

    /* Targets, and further handles of them. */
    REFUSED(target(one, 0), EINVAL);
    struct ibv_qp *qp = target(one, IBV_QP_INIT_ATTR_XRCD);
    CHECK(qp && qp->qp_type == IBV_QPT_XRC_RECV && !qp->recv_cq && !qp->pd);
    struct ibv_qp *more = opened(same, qp->qp_num, IBV_QPT_XRC_RECV);
    CHECK(more && more != qp && more->qp_num == qp->qp_num);
    REFUSED(opened(other, qp->qp_num, IBV_QPT_XRC_RECV), ENOENT);
    REFUSED(opened(one, qp->qp_num + 1, IBV_QPT_XRC_RECV), ENOENT);
    REFUSED(opened(one, qp->qp_num, IBV_QPT_RC), EINVAL);
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(more, &init, mask) == 0);
    /* Either handle may end first; the queue pair ends with the last. */
    CHECK(ibv_destroy_qp(qp) == 0);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr known;
    CHECK(ibv_query_qp(more, &attr, IBV_QP_STATE, &known) == 0 && attr.qp_state == IBV_QPS_INIT);
    qp = opened(one, more->qp_num, IBV_QPT_XRC_RECV);
    CHECK(qp && ibv_destroy_qp(more) == 0);
    CHECK(ibv_close_xrcd(again) == 0 && ibv_close_xrcd(same) == 0);
    CHECK(ibv_close_xrcd(one) == EBUSY && ibv_destroy_qp(qp) == 0);

    /* SRQs: every one has a number; an XRC SRQ needs all of its three. */
    struct ibv_srq_init_attr_ex srq_init = { .attr = { .max_wr = 4, .max_sge = 1 },
                                            .comp_mask = IBV_SRQ_INIT_ATTR_TYPE |
                                                         IBV_SRQ_INIT_ATTR_PD |
                                                         IBV_SRQ_INIT_ATTR_XRCD,
                                            .srq_type = IBV_SRQT_XRC,
                                            .pd = pd,
                                            .xrcd = one,
                                            .cq = cq};
    REFUSED(ibv_create_srq_ex(ctx, &srq_init), EINVAL);
    srq_init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    struct ibv_srq *srq = ibv_create_srq_ex(ctx, &srq_init);
    struct ibv_srq_init_attr basic_init = { .attr = { .max_wr = 4, .max_sge = 1 }};
    struct ibv_srq *basic = ibv_create_srq(pd, &basic_init);
    uint32_t number, basic_number;
    CHECK(srq && basic && ibv_get_srq_num(srq, &number) == 0);
    CHECK(ibv_get_srq_num(basic, &basic_number) == 0 && number != basic_number);
    CHECK(ibv_close_xrcd(one) == EBUSY && ibv_destroy_cq(cq) == EBUSY);

    /* Initiators, by the plain verb and by the extended one. */
    struct ibv_qp_init_attr plain = {
        .send_cq = cq, .qp_type = IBV_QPT_XRC_SEND, .cap = { .max_send_wr = 4, .max_send_sge = 1 }};
    struct ibv_qp *ini = ibv_create_qp(pd, &plain);
    CHECK(ini && ibv_qp_to_qp_ex(ini) == NULL && ibv_destroy_qp(ini) == 0);
    struct ibv_qp_init_attr_ex ex = {
        .send_cq = cq,
        .qp_type = IBV_QPT_XRC_SEND,
        .cap = { .max_send_wr = 4, .max_send_sge = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND};
    ini = ibv_create_qp_ex(ctx, &ex);
    CHECK(ini && ibv_qp_to_qp_ex(ini)->wr_set_xrc_srqn && ibv_destroy_qp(ini) == 0);
    plain.qp_type = IBV_QPT_XRC_RECV;
    REFUSED(ibv_create_qp(pd, &plain), EINVAL);

    CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_srq(basic) == 0);
    CHECK(ibv_close_xrcd(one) == 0 && ibv_close_xrcd(other) == 0);
    /* With the last handle of a file's domain the file names none. */
    REFUSED(domain(fd, 0), EAGAIN);
    /* What is left ends with the context. */
    one = domain(fd, O_CREAT);
    qp = target(one, IBV_QP_INIT_ATTR_XRCD);
    CHECK(one && qp && opened(one, qp->qp_num, IBV_QPT_XRC_RECV));
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    puts("ok");
    return 0;
}
