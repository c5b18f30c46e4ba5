// SPDX-License-Identifier: MIT OR Apache-2.0
/* The CQ is armed behind the post and not polled before the wait: the event may never come. */
#include "wrong.h"

#include <fcntl.h>
#include <poll.h>

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
    CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, 8, 4096, IBV_SEND_SIGNALED) == 0);
    CHECK(ibv_req_notify_cq(own, 0) == 0);
    /* Both on this device and on a NIC the event has come or never comes. */
    struct pollfd fd = {channel->fd, POLLIN, 0};
    void *context;
    if (poll(&fd, 1, 100) == 0)
        CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    if (ibv_get_cq_event(channel, &of, &context) == 0) /* WRONG */
        ibv_ack_cq_events(of, 1);
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_cq(own) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
    return end();
}
