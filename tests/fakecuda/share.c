/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sharing between processes and devices: CUDA IPC handles, dma-buf descriptors. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOST_PAGE 4096u
#define IPC_MAGIC 0x66616b6563756461ull

struct ticket {
    uint64_t magic, size, asked, inode;
    int pid, fd, device;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr at)
{
    CUresult rc = fake_enter("cuIpcGetMemHandle");
    if (rc)
        return rc;
    fake_lock();
    struct block *b = fake_find(at);
    if (b && b->kind == BLOCK_ALLOC) {
        struct ticket t = { IPC_MAGIC, b->size,       b->asked,         b->memory->inode,
                            getpid(),  b->memory->fd, b->memory->device };
        memset(out, 0, sizeof *out);
        memcpy(out, &t, sizeof t);
    } else {
        rc = INVALID_VALUE;
    }
    fake_unlock();
    return rc;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuIpcOpenMemHandle_v2", &current);
    struct ticket t;
    struct stat st;
    char path[64];
    (void)flags;
    if (rc)
        return rc;
    memcpy(&t, &handle, sizeof t);
    if (t.magic != IPC_MAGIC || !t.asked || t.asked > t.size)
        return INVALID_VALUE;
    if (t.pid == getpid())
        return INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", t.pid, t.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES || errno == EPERM ? NOT_PERMITTED : INVALID_HANDLE;
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_ino != t.inode || (uint64_t)st.st_size < t.size) {
        close(fd);
        return INVALID_HANDLE;
    }
    fake_lock();
    struct physical *p = fake_wrap(fd, (size_t)t.size, current->device);
    struct block *b = p ? fake_reserve((size_t)t.asked, GRANULE) : NULL;
    if (b) {
        b->memory = p;
        b->kind = BLOCK_IPC;
        b->accessible = true;
        *out = b->at;
    } else if (p) {
        fake_put(p);
    } else {
        close(fd);
    }
    fake_unlock();
    return b ? OK : MAP_FAILED_;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    CUresult rc = fake_enter("cuIpcCloseMemHandle");
    if (rc)
        return rc;
    fake_settle();
    struct block *b = fake_find(at);
    rc = b && b->at == at && b->kind == BLOCK_IPC ? OK : INVALID_VALUE;
    if (!rc)
        fake_forget(b);
    fake_unlock();
    return rc;
}

CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr at, size_t size, int type,
                                       unsigned long long flags)
{
    CUresult rc = fake_enter("cuMemGetHandleForAddressRange");
    int kind = fake_option("FAKECUDA_DMABUF", 1), fd = -1;
    char path[64];
    (void)flags;
    if (rc)
        return rc;
    if (!kind)
        return NOT_SUPPORTED;
    fake_lock();
    struct block *b = fake_find(at);
    if (type != 1 || !b || !b->memory || at % HOST_PAGE || size % HOST_PAGE ||
        size > b->size - (at - b->at)) {
        rc = INVALID_VALUE;
    } else {
        /*
         * The kernel's file of a range begins at the range; ours only at the start of the memory.
         */
        bool writable = kind == 2 && at == b->at;
        snprintf(path, sizeof path, "/proc/self/fd/%d", b->memory->fd);
        /* A confined program opens no files. */
        fd = writable ? fcntl(b->memory->fd, F_DUPFD_CLOEXEC, 0)
                      : open(path, O_RDONLY | O_CLOEXEC);
        rc = fd < 0 ? OPERATING_SYSTEM : OK;
    }
    fake_unlock();
    if (!rc) {
        *(int *)out = fd;
        fake_count(STAT_DESCRIPTORS, 1);
    }
    return rc;
}
