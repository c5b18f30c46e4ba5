/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Shared start of the tests' programs of the C API: a check that ends the program and says why the
 * last call was refused, the next completion of a CQ, and a queue pair's way back to RESET.
 */
#ifndef GDRC_TEST_CHECKED_H
#define GDRC_TEST_CHECKED_H

#include <errno.h>
#include <gdrcore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "patience.h"

/* The reason of the last refused call. */
static inline const char *why(void)
{
    static char words[256];
    words[0] = 0;
    gdrc_error_detail(words, sizeof words);
    return words;
}

#define MUST(x)                                                                      \
    do {                                                                             \
        if (!(x)) {                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #x, why());      \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

/* Ends a test that waits for longer than a minute of an idle machine. */
static inline void must_be_soon(const struct timespec *begin)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    MUST((now.tv_sec - begin->tv_sec) * 1000 < patience_ms(60));
}

static inline gdrc_wc next_wc(gdrc_context *ctx, gdrc_cq cq)
{
    struct timespec begin;
    gdrc_wc wc;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        int n = gdrc_poll_cq(ctx, cq, 1, &wc);
        MUST(n >= 0);
        if (n == 1)
            return wc;
        must_be_soon(&begin);
    }
}

/* To RESET. A NIC needs its completions polled; returns how many were dropped. */
static inline int reset_qp(gdrc_context *ctx, gdrc_qp qp, gdrc_cq cq)
{
    struct timespec begin;
    gdrc_wc wc;
    int rc, dropped = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while ((rc = gdrc_qp_reset(ctx, qp)) == -EAGAIN) {
        int n = gdrc_poll_cq(ctx, cq, 1, &wc);
        MUST(n >= 0);
        dropped += n;
        must_be_soon(&begin);
    }
    MUST(rc == 0);
    return dropped;
}

#endif
