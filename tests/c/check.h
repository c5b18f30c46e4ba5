/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A check of the tests' programs that use libibverbs alone: ends the program and says which failed.
 */
#ifndef GDRC_TEST_CHECK_H
#define GDRC_TEST_CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                      \
    do {                                                                                 \
        if (!(what)) {                                                                   \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#endif
