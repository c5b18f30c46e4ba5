// SPDX-License-Identifier: MIT OR Apache-2.0
/* An event is taken for a sign of completions that have not been polled. */
#include "../wrong/wrong.h"

#include <unistd.h>

#define MESSAGES 16

int main(void)
{
    begin(16, 64);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    CHECK(channel);
    struct ibv_cq *own = ibv_create_cq(ctx, 64, NULL, channel, 0), *of;
    CHECK(own);
    struct ibv_qp *c = make_qp(own, MESSAGES), *d = make_qp(cq, 16);
    connect_both(c, d);
    memset(memory, 1, 64);
    for (int i = 0; i < MESSAGES; i++)
        CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, 64, 8192 + 64 * i, IBV_SEND_SIGNALED) == 0);
    struct ibv_wc wc[2 * MESSAGES];
    /* A device that works in calls has had some when all have completed. */
    for (int i = 0; i < 100; i++) {
        usleep(1000);
        CHECK(ibv_poll_cq(cq, 1, wc) == 0);
    }
    CHECK(ibv_req_notify_cq(own, 0) == 0);
    for (int left = MESSAGES; left > 0;) {
        int n = ibv_poll_cq(own, 2 * MESSAGES, wc);
        CHECK(n >= 0);
        left -= n;
    }
    struct pollfd p = {.fd = channel->fd, .events = POLLIN};
    void *context;
    if (poll(&p, 1, 0) == 1) {
        CHECK(ibv_get_cq_event(channel, &of, &context) == 0);
        ibv_ack_cq_events(of, 1);
        CHECK(ibv_poll_cq(own, 1, wc) == 1); /* WRONG */
    }
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_qp(d) == 0 && ibv_destroy_cq(own) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
    return end();
}
