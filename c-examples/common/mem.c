// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Buffers by kind of memory. Programs name a kind ("host", "shared", "cuda", "cuda:BDF") and are
 * otherwise independent of it: a kind is one row of the table below.
 */
#include "gx.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Without SHRINK a client could truncate the file under the router, which would die by SIGBUS; SEAL
 * protects the other two.
 */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct kind {
    const char *name;
    int (*alloc)(struct gx_mem *mem, const char *where, size_t length, bool shareable);
    int (*import)(struct gx_mem *mem, const char *where, int fd, const void *token,
                  size_t token_bytes, size_t length);
    void (*release)(struct gx_mem *mem);
    int (*copy)(const struct gx_mem *mem, size_t offset, void *bytes, size_t length, bool into);
};

static int host_alloc(struct gx_mem *mem, const char *where, size_t length, bool shareable)
{
    (void)where;
    if (!shareable) {
        void *addr = mmap(NULL, length, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (addr == MAP_FAILED) {
            int err = errno;
            gx_error("Ask for a smaller buffer.", "no %zu bytes of memory: %s", length,
                     strerror(err));
            return -err;
        }
        mem->addr = addr;
        return 0;
    }
    int fd = memfd_create("gdrcore-example", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        int err = errno;
        gx_error("Linux 3.17 or later has it; a seccomp filter may forbid it.", "memfd_create: %s",
                 strerror(err));
        return -err;
    }
    void *addr = MAP_FAILED;
    /* fallocate: missing memory should fail now, not by SIGBUS at the first access. */
    int err = posix_fallocate(fd, 0, (off_t)length);
    if (!err && fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        err = errno;
    if (!err &&
        (addr = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        err = errno;
    if (err) {
        gx_error("Ask for a smaller buffer, or look at the memory limit of this container.",
                 "no %zu bytes of shared memory: %s", length, strerror(err));
        close(fd);
        return -err;
    }
    mem->addr = addr;
    mem->fd = fd;
    return 0;
}

/* Memory of a descriptor, which a peer on this host maps and writes itself. */
static int shared_alloc(struct gx_mem *mem, const char *where, size_t length, bool shareable)
{
    (void)shareable;
    return host_alloc(mem, where, length, true);
}

static int host_import(struct gx_mem *mem, const char *where, int fd, const void *token,
                       size_t token_bytes, size_t length)
{
    (void)where, (void)token, (void)token_bytes;
    struct stat st;
    if (fd < 0) {
        gx_error("Router and client must be of the same version.",
                 "the router handed over no buffer");
        return -EPROTO;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) {
        gx_error("Its owner could shrink it and kill this process by SIGBUS; a router of this "
                 "project seals it.",
                 "the buffer that was handed over is not sealed");
        return -EPERM;
    }
    if (fstat(fd, &st) < 0 || st.st_size < 0 || (uint64_t)st.st_size < length || !length) {
        gx_error("Router and client must be of the same version.",
                 "the buffer that was handed over is smaller than was said");
        return -EPROTO;
    }
    void *addr = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED) {
        int err = errno;
        gx_error("Look at the memory limits of this container (ulimit -v).",
                 "mapping the buffer: %s", strerror(err));
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

/* The library's text for its last failure, as the hint of our message. */
static const char *cuda_words(char out[400])
{
    gdrc_error_detail(out, 400);
    return *out ? out : NULL;
}

static int cuda_failed(int err, const char *what)
{
    char words[400];
    const char *hint = cuda_words(words);
    gx_error(hint ? hint : gdrc_strerror(err),
             "GPU memory: %s failed (host memory needs no -m, -u or --mem)", what);
    return err;
}

static void *as_pointer(uint64_t addr) { return (void *)(uintptr_t)addr; }
static uint64_t as_address(const struct gx_mem *mem) { return (uint64_t)(uintptr_t)mem->addr; }

static int cuda_alloc(struct gx_mem *mem, const char *where, size_t length, bool shareable)
{
    uint64_t addr = 0;
    int gpu = gdrc_cuda_device(where, NULL);
    if (gpu < 0)
        return cuda_failed(gpu, "finding the GPU");
    /*
     * A descriptor can be passed into containers, a handle of CUDA IPC cannot; older drivers only
     * have CUDA IPC.
     */
    int err = shareable ? gdrc_cuda_alloc(gpu, length, GDRC_CUDA_SHAREABLE, &addr) : -EOPNOTSUPP;
    if (err == -EOPNOTSUPP || err == -ENODEV)
        err = gdrc_cuda_alloc(gpu, length, 0, &addr);
    if (err)
        return cuda_failed(err, "allocating");
    mem->addr = as_pointer(addr);
    mem->gpu = true;
    /* Cleared, as fresh host pages are: data of another program must not be visible. */
    err = gdrc_cuda_fill(addr, 0, length);
    if (!err && shareable) {
        err = gdrc_cuda_export(addr, length, (struct gdrc_cuda_handle *)mem->token, &mem->fd);
        mem->token_bytes = err ? 0 : sizeof(struct gdrc_cuda_handle);
    }
    if (err) {
        cuda_failed(err, "clearing or exporting");
        gdrc_cuda_free(addr);
        mem->addr = NULL;
    }
    return err;
}

static int cuda_import(struct gx_mem *mem, const char *where, int fd, const void *token,
                       size_t token_bytes, size_t length)
{
    struct gdrc_cuda_handle handle;
    uint64_t addr = 0;
    (void)where;
    memcpy(&handle, token, token_bytes < sizeof handle ? token_bytes : sizeof handle);
    if (token_bytes != sizeof handle || handle.length != length) {
        gx_error("Router and client must be of the same version.",
                 "the GPU buffer that was handed over is not described whole");
        return -EPROTO;
    }
    int err = gdrc_cuda_import(&handle, fd, &addr);
    if (err)
        return cuda_failed(err, "opening the router's buffer");
    mem->addr = as_pointer(addr);
    mem->gpu = true;
    mem->fd = fd;
    return 0;
}

static void cuda_release(struct gx_mem *mem)
{
    gdrc_cuda_free(as_address(mem));
    if (mem->fd >= 0)
        close(mem->fd);
}

static int cuda_copy(const struct gx_mem *mem, size_t offset, void *bytes, size_t length, bool into)
{
    uint64_t at = as_address(mem) + offset;
    int err = into ? gdrc_cuda_copy_in(at, bytes, length) : gdrc_cuda_copy_out(bytes, at, length);
    return err ? cuda_failed(err, "copying") : 0;
}

static const struct kind kinds[] = {
    { "host", host_alloc, host_import, host_release, host_copy },
    { "shared", shared_alloc, host_import, host_release, host_copy },
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
    gx_error("Kinds are: host, shared, cuda[:BDF].", "there is no kind of memory '%s'", name);
    return NULL;
}

static int prepare(struct gx_mem *mem, const char *name, size_t length, const struct kind **kind,
                   const char **where)
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

int gx_mem_import(struct gx_mem *mem, const char *name, int fd, const void *token,
                  size_t token_bytes, size_t length)
{
    const struct kind *kind;
    const char *where;
    int err = prepare(mem, name, length, &kind, &where);
    err = err ? err : kind->import(mem, where, fd, token, token_bytes, length);
    if (err && fd >= 0)
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

int gx_mem_fill(struct gx_mem *mem, size_t offset, uint8_t byte, size_t length)
{
    if (offset > mem->length || length > mem->length - offset)
        return -ERANGE;
    if (!mem->gpu) {
        memset((uint8_t *)mem->addr + offset, byte, length);
        return 0;
    }
    int err = gdrc_cuda_fill(as_address(mem) + offset, byte, length);
    return err ? cuda_failed(err, "filling") : 0;
}

void gx_mem_describe(const struct gx_mem *mem, struct gdrc_memory *out)
{
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->kind = mem->gpu ? GDRC_MEMORY_CUDA : GDRC_MEMORY_HOST;
    out->addr = as_address(mem);
    out->length = mem->length;
    if (!strcmp(mem->kind, "shared")) {
        out->flags = GDRC_MEMORY_FLAG_SHARED;
        out->fd = mem->fd;
    }
}
