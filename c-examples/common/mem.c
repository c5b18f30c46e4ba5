// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Buffers by kind of memory. Programs name the kind ("host", "cuda", "cuda:BDF") and otherwise do not
 * know what they hold: a kind is one row of the table at the bottom of this file.
 */
#include "gx.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Without SHRINK a client could truncate the file under the router and kill it with SIGBUS; SEAL keeps the other two. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct kind {
    const char *name;
    int (*alloc)(struct gx_mem *mem, const char *where, size_t length, bool shareable);
    int (*import)(struct gx_mem *mem, const char *where, int fd, size_t length);
    void (*release)(struct gx_mem *mem);
    int (*copy)(const struct gx_mem *mem, size_t offset, void *bytes, size_t length, bool into);
};

static int host_alloc(struct gx_mem *mem, const char *where, size_t length, bool shareable)
{
    (void)where;
    if (!shareable) {
        void *addr = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (addr == MAP_FAILED) {
            int err = errno;
            gx_error("Ask for a smaller buffer.", "no %zu bytes of memory: %s", length, strerror(err));
            return -err;
        }
        mem->addr = addr;
        return 0;
    }
    int fd = memfd_create("gdrcore-example", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        int err = errno;
        gx_error("Linux 3.17 or later has it; a seccomp filter may forbid it.", "memfd_create: %s", strerror(err));
        return -err;
    }
    void *addr = MAP_FAILED;
    /* fallocate: memory that is not there should fail now, not by SIGBUS at the first touch. */
    int err = posix_fallocate(fd, 0, (off_t)length);
    if (!err && fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        err = errno;
    if (!err && (addr = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        err = errno;
    if (err) {
        gx_error("Ask for a smaller buffer, or look at the memory limit of this container.", "no %zu bytes of shared memory: %s",
                 length, strerror(err));
        close(fd);
        return -err;
    }
    mem->addr = addr;
    mem->fd = fd;
    return 0;
}

static int host_import(struct gx_mem *mem, const char *where, int fd, size_t length)
{
    (void)where;
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) {
        gx_error("Its owner could shrink it and kill this process by SIGBUS; a router of this project seals it.",
                 "the buffer that was handed over is not sealed");
        return -EPERM;
    }
    if (fstat(fd, &st) < 0 || st.st_size < 0 || (uint64_t)st.st_size < length || !length) {
        gx_error("Router and client must be of the same version.", "the buffer that was handed over is smaller than was said");
        return -EPROTO;
    }
    void *addr = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED) {
        int err = errno;
        gx_error("Look at the memory limits of this container (ulimit -v).", "mapping the buffer: %s", strerror(err));
        return -err;
    }
    mem->addr = addr;
    mem->fd = fd;
    return 0;
}

static void host_release(struct gx_mem *mem)
{
    munmap(mem->addr, mem->length);
    if (mem->fd >= 0)
        close(mem->fd);
}

static int host_copy(const struct gx_mem *mem, size_t offset, void *bytes, size_t length, bool into)
{
    uint8_t *at = (uint8_t *)mem->addr + offset;
    memcpy(into ? at : bytes, into ? bytes : at, length);
    return 0;
}

static int cuda_missing(void)
{
    gx_error("Use host memory (-m host, or no -u).", "GPU memory is not built into this version of the examples");
    return -EOPNOTSUPP;
}

static int cuda_alloc(struct gx_mem *mem, const char *where, size_t length, bool shareable)
{
    (void)mem, (void)where, (void)length, (void)shareable;
    return cuda_missing();
}

static int cuda_import(struct gx_mem *mem, const char *where, int fd, size_t length)
{
    (void)mem, (void)where, (void)fd, (void)length;
    return cuda_missing();
}

static void cuda_release(struct gx_mem *mem) { (void)mem; }

static int cuda_copy(const struct gx_mem *mem, size_t offset, void *bytes, size_t length, bool into)
{
    (void)mem, (void)offset, (void)bytes, (void)length, (void)into;
    return cuda_missing();
}

static const struct kind kinds[] = {
    { "host", host_alloc, host_import, host_release, host_copy },
    { "cuda", cuda_alloc, cuda_import, cuda_release, cuda_copy },
};

/* "cuda:b7:00.0" is kind "cuda" at "b7:00.0". */
static const struct kind *find(const char *name, const char **where)
{
    size_t stem = strcspn(name, ":");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strlen(kinds[i].name) == stem && !memcmp(kinds[i].name, name, stem)) {
            *where = name[stem] ? name + stem + 1 : "";
            return &kinds[i];
        }
    }
    gx_error("Kinds are: host, cuda[:BDF].", "there is no kind of memory '%s'", name);
    return NULL;
}

static int prepare(struct gx_mem *mem, const char *name, size_t length, const struct kind **kind, const char **where)
{
    *kind = find(name, where);
    if (!*kind || strlen(name) >= sizeof mem->kind)
        return -EINVAL;
    memset(mem, 0, sizeof *mem);
    mem->fd = -1;
    mem->length = length;
    strcpy(mem->kind, name);
    return 0;
}

int gx_mem_alloc(struct gx_mem *mem, const char *name, size_t length, bool shareable)
{
    const struct kind *kind;
    const char *where;
    int err = prepare(mem, name, length, &kind, &where);
    return err ? err : kind->alloc(mem, where, length, shareable);
}

int gx_mem_import(struct gx_mem *mem, const char *name, int fd, size_t length)
{
    const struct kind *kind;
    const char *where;
    int err = prepare(mem, name, length, &kind, &where);
    err = err ? err : kind->import(mem, where, fd, length);
    if (err)
        close(fd);
    return err;
}

void gx_mem_free(struct gx_mem *mem)
{
    const char *where;
    const struct kind *kind = mem->addr ? find(mem->kind, &where) : NULL;
    if (kind)
        kind->release(mem);
    memset(mem, 0, sizeof *mem);
    mem->fd = -1;
}

static int copy(const struct gx_mem *mem, size_t offset, void *bytes, size_t length, bool into)
{
    const char *where;
    const struct kind *kind = mem->addr ? find(mem->kind, &where) : NULL;
    if (!kind)
        return -EINVAL;
    if (offset > mem->length || length > mem->length - offset)
        return -ERANGE;
    return length ? kind->copy(mem, offset, bytes, length, into) : 0;
}

int gx_mem_read(const struct gx_mem *mem, size_t offset, void *to, size_t length)
{
    return copy(mem, offset, to, length, false);
}

int gx_mem_write(struct gx_mem *mem, size_t offset, const void *from, size_t length)
{
    return copy(mem, offset, (void *)(uintptr_t)from, length, true);
}
