// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Behind IBV_EVENT_DEVICE_FATAL another event is waited for, and none comes any more
 * (Mellanox/libvma, change 828).
 */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    for (int i = 0; i < 8 && !event_waits(); i++) {
        CHECK(post(IBV_WR_RDMA_WRITE, 0, 8, 4096, IBV_SEND_SIGNALED) == 0);
        poll_until_event(1);
    }
    if (event_waits()) {
        struct ibv_async_event event;
        CHECK(ibv_get_async_event(ctx, &event) == 0);
        CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
        ibv_ack_async_event(&event);
        struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
        CHECK(poll(&p, 1, 100) == 1); /* WRONG */
    }
    return end();
}
