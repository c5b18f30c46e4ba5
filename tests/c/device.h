/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Shared start of the tests' libibverbs programs: a check that ends the program, and a context on
 * the first device.
 */
#ifndef GDRC_TEST_DEVICE_H
#define GDRC_TEST_DEVICE_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                      \
    do {                                                                                 \
        if (!(what)) {                                                                   \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static inline struct ibv_context *open_device(void) {
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n > 0);
    struct ibv_context *ctx = ibv_open_device(list[0]);
    CHECK(ctx);
    ibv_free_device_list(list);
    return ctx;
}

#endif
