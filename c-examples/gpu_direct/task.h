// SPDX-License-Identifier: MIT OR Apache-2.0
/* Shared by server and client of gpu_direct: messages, options, the pattern for checking data. */
#ifndef TASK_H
#define TASK_H

#include "../common/gx.h"
#include "gpu_direct_rdma_access.h"

#define GD_PORT 18515
#define GD_SIZE_MAX (1u << 30)

enum {
    GD_MSG_DESCRIBE = GX_MSG_PROGRAM, /* each way: text of gda_describe, to connect to */
    GD_MSG_TASK,                      /* client: flags 4, size 8, seed 8, number 8 */
    GD_MSG_RESULT,                    /* server: status 4 (an errno or 0), number 8 */
};
#define GD_TASK_BYTES 28u
#define GD_RESULT_BYTES 12u
#define GD_FLAG_READ 1u  /* server reads the client's buffer; otherwise it writes it */
#define GD_FLAG_CHECK 2u /* the sender fills in the pattern, the receiver checks it */

/* Bits of -D. */
enum { GD_DEBUG_TASKS = 1, GD_DEBUG_COUNTERS = 2, GD_DEBUG_DESCRIPTIONS = 4, GD_DEBUG_SPOIL = 8 };

/* Parses the value of --transport: "dc" or "rc". Otherwise prints an error and returns -EINVAL. */
int gd_parse_transport(const char *text, enum gda_transport *out);
/*
 * Fills the first `length` bytes with a pattern that differs at every position and for every seed.
 */
int gd_fill(struct gx_mem *mem, uint64_t length, uint64_t seed);
/* Returns 0, or -EBADMSG with the first wrong position in *where. */
int gd_verify(const struct gx_mem *mem, uint64_t length, uint64_t seed, uint64_t *where);
void gd_print_counters(gdrc_context *ctx);

#endif
