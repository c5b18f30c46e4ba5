// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * lost: a program that sleeps on a completion channel, and a thread of it on asynchronous events,
 * while its device is a router's, which ends. Prints "ready" before it sleeps, "lost" when both
 * have learnt of the end, and "ok" when another context works on the device of the next router.
 */
#include "rc_pair.h"

#include <pthread.h>
#include <unistd.h>

static struct ibv_context *ctx;
static char memory[4096];

static void *wait_for_the_end(void *context)
{
    struct ibv_async_event e;
    CHECK(ibv_get_async_event(context, &e) == 0);
    CHECK(e.event_type == IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&e);
    return NULL;
}

int main(void)
{
    CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
    ctx = open_device();
    // Pages that are registered here are in no child.
    CHECK(ibv_is_fork_initialized() == IBV_FORK_ENABLED);
    struct ibv_device_attr_ex attr;
    CHECK(ibv_query_device_ex(ctx, NULL, &attr) == 0);
    CHECK(attr.odp_caps.general_caps == IBV_ODP_SUPPORT);
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, channel, 0), *found;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE);
    CHECK(pd && channel && cq && mr);
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC, 4);
    connect_qp(qp, qp->qp_num, 14);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    CHECK(write_to(qp, mr, 8, (uintptr_t)memory + 64, mr->rkey).status == IBV_WC_SUCCESS);
    void *context;
    CHECK(ibv_get_cq_event(channel, &found, &context) == 0 && found == cq);
    ibv_ack_cq_events(cq, 1);

    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_the_end, ctx) == 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    CHECK(ibv_get_cq_event(channel, &found, &context) == 0 && found == cq);
    ibv_ack_cq_events(cq, 1);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == -ENOTCONN);
    CHECK(ibv_dereg_mr(mr) == ENOTCONN && errno == ENOTCONN);
    CHECK(ibv_req_notify_cq(cq, 0) == ENOTCONN);
    CHECK(pthread_join(thread, NULL) == 0);
    // A context that comes later learns of the end, too.
    struct ibv_context *late = ibv_import_device(dup(ctx->cmd_fd)), *next;
    CHECK(late);
    wait_for_the_end(late);
    puts("lost");

    // The next router serves a context that is opened now, while the others are open.
    while (!(next = ibv_open_device(ctx->device)))
        usleep(10000);
    CHECK(ibv_dealloc_pd(ibv_alloc_pd(next)) == 0);
    CHECK(ibv_close_device(late) == 0 && ibv_close_device(ctx) == 0);
    CHECK(ibv_close_device(next) == 0);
    puts("ok");
    return 0;
}
