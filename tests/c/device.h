/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Shared start of the tests' libibverbs programs: a context on the first device.
 */
#ifndef GDRC_TEST_DEVICE_H
#define GDRC_TEST_DEVICE_H

#include <infiniband/verbs.h>

#include "check.h"

static inline struct ibv_context *open_device(void) {
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n > 0);
    struct ibv_context *ctx = ibv_open_device(list[0]);
    CHECK(ctx);
    ibv_free_device_list(list);
    return ctx;
}

/* The next completion of a CQ. */
static inline struct ibv_wc next_wc(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(n == 1);
    return wc;
}

#endif
