// SPDX-License-Identifier: MIT OR Apache-2.0
/* An event is taken and acknowledged by a thread that comes too late. */
#include "wrong.h"

#include <pthread.h>
#include <unistd.h>

/* Acknowledges the event long after the main thread has begun the destruction. */
static void *acknowledge(void *of)
{
    sleep(3);
    ibv_ack_cq_events(of, 1);
    return NULL;
}

int main(void)
{
    begin(16, 64);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    CHECK(channel);
    struct ibv_cq *own = ibv_create_cq(ctx, 16, NULL, channel, 0), *of;
    struct ibv_qp *c = make_qp(own, 16);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(b, &reset, IBV_QP_STATE) == 0);
    connect_both(c, b);
    CHECK(ibv_req_notify_cq(own, 0) == 0);
    CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, 8, 4096, IBV_SEND_SIGNALED) == 0);
    void *context;
    CHECK(ibv_get_cq_event(channel, &of, &context) == 0);
    CHECK(ibv_destroy_qp(c) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, acknowledge, own) == 0);
    CHECK(ibv_destroy_cq(own) == 0); /* WRONG */
    CHECK(pthread_join(thread, NULL) == 0 && ibv_destroy_comp_channel(channel) == 0);
    return end();
}
