/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Events of librdmacm, which the tests' programs expect one by one.
 */
#ifndef GDRC_TEST_CM_EVENT_H
#define GDRC_TEST_CM_EVENT_H

#include <rdma/rdma_cma.h>

#include "check.h"

/* The next event of a channel, which has to be of this type. The caller acknowledges it. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel,
                                               enum rdma_cm_event_type type)
{
    struct rdma_cm_event *e;
    CHECK(rdma_get_cm_event(channel, &e) == 0);
    if (e->event != type)
        fprintf(stderr, "%s, not %s\n", rdma_event_str(e->event), rdma_event_str(type));
    CHECK(e->event == type);
    return e;
}

/* Takes it. Returns its id. */
static inline struct rdma_cm_id *take_event(struct rdma_event_channel *channel,
                                            enum rdma_cm_event_type type)
{
    struct rdma_cm_event *e = next_event(channel, type);
    struct rdma_cm_id *id = e->id;
    CHECK(rdma_ack_cm_event(e) == 0);
    return id;
}

#endif
