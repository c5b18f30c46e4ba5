// SPDX-License-Identifier: MIT OR Apache-2.0
/* The CQ is armed behind the post and not polled before the wait: the event may never come. */
#include "wrong_api.h"

#include <pthread.h>
#include <unistd.h>

/* On a device where the event never comes, another message ends the wait. */
static void *wake(void *qp)
{
    usleep(200000);
    int rc = request(*(gdrc_qp *)qp, keys.lkey, GDRC_WR_RDMA_WRITE, memory, 8, memory + 4096,
                     keys.rkey, GDRC_SEND_SIGNALED);
    CHECK(rc == 0);
    return NULL;
}

int main(void)
{
    begin(16, 64);
    gdrc_channel channel;
    gdrc_cq own, of;
    CHECK(gdrc_channel_create(ctx, &channel) == 0);
    CHECK(gdrc_cq_create_on(ctx, 16, channel, &own, NULL) == 0);
    gdrc_qp from = make_qp(own, 16), to = make_qp(own, 16);
    connect_both(from, to);
    wake(&from);
    CHECK(gdrc_cq_arm(ctx, own, 0) == 0);
    pthread_t waker;
    CHECK(pthread_create(&waker, NULL, wake, &from) == 0);
    CHECK(gdrc_channel_wait(ctx, channel, -1, &of) == 1); /* WRONG */
    CHECK(pthread_join(waker, NULL) == 0);
    CHECK(gdrc_qp_destroy(ctx, from) == 0 && gdrc_qp_destroy(ctx, to) == 0);
    CHECK(gdrc_cq_destroy(ctx, own) == 0 && gdrc_channel_destroy(ctx, channel) == 0);
    return end();
}
