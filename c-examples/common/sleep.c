// SPDX-License-Identifier: MIT OR Apache-2.0
/* Sleeps until a context, a socket or a time is due. */
#include "gx.h"

#include <errno.h>
#include <string.h>

/* Longest sleep, whatever the engine's next timer is. */
#define SLEEP_MS_MAX 100

static void drop_events(gdrc_context *ctx)
{
    struct gdrc_async_event event;
    gdrc_cq cq;
    memset(&event, 0, sizeof event);
    /*
     * Failures show in the CQ, which is polled anyway; events left in the queue would keep the
     * descriptor readable.
     */
    while (gdrc_get_async_event(ctx, &event) == 1)
        ;
    while (gdrc_get_cq_event(ctx, &cq) == 1)
        ;
}

int gx_sleep(gdrc_context *ctx, const gdrc_cq *cq, struct pollfd *fds, nfds_t count, int timeout_ms)
{
    struct pollfd all[GX_SLEEP_FDS_MAX + 1];
    if (gx_stopping && gx_signals > gx_allowed)
        return -EINTR;
    if (count > GX_SLEEP_FDS_MAX)
        return -EINVAL;
    if (count)
        memcpy(all, fds, count * sizeof *fds);
    nfds_t used = count;
    if (ctx) {
        int busy = cq ? gdrc_cq_arm(ctx, *cq, 0) : 0;
        if (busy == 0)
            busy = gdrc_arm(ctx);
        if (busy < 0)
            return busy;
        if (timeout_ms < 0 || timeout_ms > SLEEP_MS_MAX)
            timeout_ms = SLEEP_MS_MAX;
        if (busy)
            timeout_ms = 0;
        all[used++] = (struct pollfd){ .fd = gdrc_fd(ctx), .events = POLLIN };
    }
    int ready = poll(all, used, timeout_ms);
    if (ready < 0 && errno != EINTR)
        return -errno;
    if (gx_stopping && gx_signals > gx_allowed)
        return -EINTR;
    if (ready < 0)
        for (nfds_t i = 0; i < used; i++)
            all[i].revents = 0;
    if (ctx) {
        int ran = gdrc_progress(ctx);
        drop_events(ctx);
        if (ran < 0)
            return ran;
    }
    ready = 0;
    for (nfds_t i = 0; i < count; i++) {
        fds[i].revents = all[i].revents;
        ready += fds[i].revents != 0;
    }
    return ready;
}
