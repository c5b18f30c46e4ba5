// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Prints where the functions of a context, an extended queue pair and an extended CQ lie, relative
 * to the library's mark: "ops NAME OFFSET".
 */
#include "device.h"

#include <dlfcn.h>
#include <stddef.h>

static const char *base;

static void show(const char *name, const void *function)
{
    printf("ops %s %td\n", name, (const char *)function - base);
}

int main(void)
{
    struct ibv_context *ctx = open_device();
    CHECK((base = dlsym(RTLD_DEFAULT, "gdrcore_dropin_version")));
    show("post_send", ctx->ops.post_send);
    show("post_recv", ctx->ops.post_recv);
    show("post_srq_recv", ctx->ops.post_srq_recv);
    show("req_notify_cq", ctx->ops.req_notify_cq);
    show("bind_mw", ctx->ops.bind_mw);
    struct verbs_context *verbs = verbs_get_ctx(ctx);
    show("query_port", verbs->query_port);
    show("create_qp_ex", verbs->create_qp_ex);
    show("create_cq_ex", verbs->create_cq_ex);
    struct ibv_cq_init_attr_ex cq_init = {.cqe = 8};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &cq_init);
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    CHECK(cq && pd);
    show("end_poll", cq->end_poll);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = ibv_cq_ex_to_cq(cq),
        .recv_cq = ibv_cq_ex_to_cq(cq),
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND};
    struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);
    CHECK(qp);
    struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qp);
    show("wr_start", q->wr_start);
    show("wr_send", q->wr_send);
    show("wr_set_sge", q->wr_set_sge);
    show("wr_complete", q->wr_complete);
    return 0;
}
