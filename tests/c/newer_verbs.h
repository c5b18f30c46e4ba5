/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Calls that libibverbs has since releases 57 to 65, looked up by name, because this machine's
 * headers may be older.
 */
#ifndef GDRC_TEST_NEWER_VERBS_H
#define GDRC_TEST_NEWER_VERBS_H

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "rc_pair.h"

struct dmah;
struct buf;
/* As in the newer headers. */
struct mr_init {
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    struct dmah *dmah;
    struct buf *buf;
};
enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

static void *(*alloc_buf)(struct ibv_pd *, size_t, struct buf **);
static void (*free_buf)(struct buf *);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, struct buf *, void *, size_t, int);
static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init *);

static inline void find(void *to, const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found)
        printf("%s is missing\n", name);
    CHECK(found);
    memcpy(to, &found, sizeof found);
}

static inline void find_common(void)
{
    find(&alloc_buf, "ibv_alloc_buf");
    find(&free_buf, "ibv_free_buf");
    find(&reg_buf_mr, "ibv_reg_buf_mr");
    find(&reg_mr_ex, "ibv_reg_mr_ex");
}

#endif
