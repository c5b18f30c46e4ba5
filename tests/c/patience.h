/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Time limits of C tests: they only end a test that hangs, and grow with GDRC_TEST_PATIENCE (see
 * testkit/src/patience.rs).
 */
#ifndef GDRC_TEST_PATIENCE_H
#define GDRC_TEST_PATIENCE_H

#include <stdlib.h>

/* Milliseconds that stand for so many seconds of an idle machine. */
static inline int patience_ms(int seconds)
{
    const char *factor = getenv("GDRC_TEST_PATIENCE");
    int n = factor ? atoi(factor) : 1;
    return 1000 * seconds * (n > 1 ? n : 1);
}

#endif
