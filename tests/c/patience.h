/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Limits of time in tests: they only end a hang, and grow with GDRC_TEST_PATIENCE (see
 * testkit/src/patience.rs).
 */
#ifndef GDRC_TEST_PATIENCE_H
#define GDRC_TEST_PATIENCE_H

#include <stdlib.h>

/* Seconds of an idle machine, in milliseconds of this one. */
static inline int patience_ms(int seconds)
{
    const char *factor = getenv("GDRC_TEST_PATIENCE");
    int n = factor ? atoi(factor) : 1;
    return 1000 * seconds * (n > 1 ? n : 1);
}

#endif
