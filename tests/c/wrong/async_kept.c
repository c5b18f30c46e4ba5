// SPDX-License-Identifier: MIT OR Apache-2.0
/* An asynchronous event is taken, and acknowledged too late. */
#include "wrong.h"

#include <pthread.h>
#include <unistd.h>

/* Acknowledges the event long after the main thread has begun the destruction. */
static void *acknowledge(void *event)
{
    sleep(3);
    ibv_ack_async_event(event);
    return NULL;
}

int main(void)
{
    begin(16, 64);
    struct ibv_async_event event;
    struct ibv_wc wc = write_to(a, mr, 8, (uintptr_t)memory, mr->rkey + 1);
    CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_get_async_event(ctx, &event) == 0 && event.event_type == IBV_EVENT_QP_ACCESS_ERR);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, acknowledge, &event) == 0);
    CHECK(ibv_destroy_qp(b) == 0); /* WRONG */
    CHECK(pthread_join(thread, NULL) == 0 && ibv_destroy_qp(a) == 0);
    end_rest();
    puts("ok");
    return 0;
}
