/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Messages whose completions may come later than they do.
 */
#ifndef GDRC_TEST_WEAK_MESSAGES_H
#define GDRC_TEST_WEAK_MESSAGES_H

#include "../wrong/wrong.h"

#include <unistd.h>

#define MESSAGES 8

/* Writes them, and returns some time after the last has arrived. */
static inline void write_and_wait(struct ibv_qp *from)
{
    memset(memory + 8192, 0, 64 * MESSAGES);
    memset(memory, 1, 64);
    for (int i = 0; i < MESSAGES; i++)
        CHECK(request(from, mr, IBV_WR_RDMA_WRITE, memory, 64, 8192 + 64 * i,
                      IBV_SEND_SIGNALED) == 0);
    for (int i = 0; i < MESSAGES; i++)
        while (((volatile char *)memory)[8192 + 64 * i] == 0)
            continue;
    usleep(20000);
}

#endif
