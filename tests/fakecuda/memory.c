/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Device memory: allocations, virtual memory management, pointer attributes, pinned memory, plain
 * copies.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define VMM_GRANULE (2u << 20)

struct pinned {
    struct pinned *next;
    uint8_t *at;
    size_t size;
};

static struct block *blocks;
static struct block *freed; /* addresses that are reused first */
static struct pinned *pins;
static uint64_t last_id, in_use[16];

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* ---- physical memory ------------------------------------------------------------------------- */

struct physical *fake_wrap(int fd, size_t size, CUdevice device)
{
    struct stat st;
    struct physical *p = calloc(1, sizeof *p);
    void *view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!p || view == MAP_FAILED || fstat(fd, &st) < 0) {
        if (view != MAP_FAILED)
            munmap(view, size);
        free(p);
        return NULL;
    }
    *p = (struct physical){
        .fd = fd,
        .view = view,
        .size = size,
        .refs = 1,
        .device = device,
        .inode = st.st_ino,
    };
    return p;
}

static struct physical *make(size_t size, CUdevice device, CUresult *rc)
{
    *rc = OUT_OF_MEMORY;
    if (size > fake_memory_limit() || in_use[device] > fake_memory_limit() - size)
        return NULL;
    int fd = memfd_create("fakecuda", MFD_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct physical *p = ftruncate(fd, (off_t)size) ? NULL : fake_wrap(fd, size, device);
    if (!p) {
        close(fd);
        return NULL;
    }
    in_use[device] += size;
    *rc = OK;
    return p;
}

void fake_put(struct physical *p)
{
    if (!p || --p->refs)
        return;
    munmap(p->view, p->size);
    close(p->fd);
    if (in_use[p->device] >= p->size)
        in_use[p->device] -= p->size;
    free(p);
}

/*
 * ---- blocks ------------------------------------------------------------------------------------
 */

struct block *fake_find(CUdeviceptr at)
{
    for (struct block *b = blocks; b; b = b->next)
        if (at >= b->at && at - b->at < b->asked)
            return b;
    return NULL;
}

uint8_t *fake_translate(CUdeviceptr at, size_t n)
{
    struct block *b = fake_find(at);
    if (!b || !b->memory || !b->accessible || n > b->asked - (at - b->at))
        return NULL;
    return b->memory->view + (at - b->at);
}

struct block *fake_reserve(size_t asked, size_t granule)
{
    size_t size = up(asked, granule);
    struct block **at = &freed, *b;
    for (; (b = *at); at = &b->next)
        if (b->size == size) {
            *at = b->next;
            break;
        }
    if (!b) {
        b = calloc(1, sizeof *b);
        /* Aligned as device memory is. */
        uint8_t *room = b ? mmap(NULL, size + granule, PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                          : MAP_FAILED;
        if (room == MAP_FAILED) {
            free(b);
            return NULL;
        }
        b->at = up((uintptr_t)room, granule);
        b->size = size;
    }
    *b = (struct block){ .at = b->at, .size = size, .asked = asked, .id = ++last_id };
    b->next = blocks;
    blocks = b;
    fake_count(STAT_BLOCKS, 1);
    return b;
}

void fake_forget(struct block *b)
{
    struct block **at = &blocks;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    fake_put(b->memory);
    b->memory = NULL;
    b->next = freed;
    freed = b;
    fake_count(STAT_BLOCKS, (uint64_t)-1);
}

/* Waits for the operations under way, as freeing does, then takes the lock. */
void fake_settle(void)
{
    fake_drain();
    fake_lock();
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t n)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuMemAlloc_v2", &current);
    if (rc)
        return rc;
    if (!n)
        return INVALID_VALUE;
    fake_lock();
    struct physical *p = make(up(n, GRANULE), current->device, &rc);
    struct block *b = p ? fake_reserve(n, GRANULE) : NULL;
    if (b) {
        b->memory = p;
        b->kind = BLOCK_ALLOC;
        b->accessible = true;
        *out = b->at;
    } else if (p) {
        fake_put(p);
        rc = OUT_OF_MEMORY;
    }
    fake_unlock();
    return rc;
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
    CUresult rc = fake_enter("cuMemFree_v2");
    if (rc)
        return rc;
    fake_settle();
    struct block *b = fake_find(at);
    rc = b && b->at == at && b->kind == BLOCK_ALLOC ? OK : INVALID_VALUE;
    if (!rc)
        fake_forget(b);
    fake_unlock();
    return rc;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
    CUresult rc = fake_enter("cuMemGetAddressRange_v2");
    if (rc)
        return rc;
    fake_lock();
    struct block *b = fake_find(at);
    if (b) {
        if (base)
            *base = b->at;
        if (size)
            *size = b->asked;
    }
    fake_unlock();
    return b ? OK : INVALID_VALUE;
}

/*
 * ---- virtual memory management ------------------------------------------------------------------
 */

struct location { int type, id; };
struct prop {
    int type, handles;
    struct location location;
    void *win32;
    unsigned char flags[8];
};
struct access { struct location location; int flags; };

static bool prop_ok(const struct prop *prop)
{
    return prop && prop->type == 1 && prop->location.type == 1 &&
           (prop->handles == 0 || prop->handles == 1);
}

CUresult cuMemGetAllocationGranularity(size_t *out, const struct prop *prop, int option)
{
    CUresult rc = fake_enter("cuMemGetAllocationGranularity");
    (void)option;
    if (rc)
        return rc;
    if (!prop_ok(prop))
        return INVALID_VALUE;
    *out = VMM_GRANULE;
    return OK;
}

CUresult cuMemCreate(uint64_t *out, size_t size, const struct prop *prop, unsigned long long flags)
{
    CUresult rc = fake_enter("cuMemCreate");
    if (rc)
        return rc;
    if (!fake_option("FAKECUDA_VMM", 1))
        return NOT_SUPPORTED;
    if (!prop_ok(prop) || flags || !size || size % VMM_GRANULE)
        return INVALID_VALUE;
    fake_lock();
    struct physical *p = make(size, prop->location.id, &rc);
    fake_unlock();
    *out = (uintptr_t)p;
    return rc;
}

CUresult cuMemRelease(uint64_t handle)
{
    CUresult rc = fake_enter("cuMemRelease");
    if (rc)
        return rc;
    fake_lock();
    fake_put((struct physical *)(uintptr_t)handle);
    fake_unlock();
    return OK;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
    CUresult rc = fake_enter("cuMemAddressReserve");
    (void)alignment, (void)hint;
    if (rc)
        return rc;
    if (!size || size % VMM_GRANULE || flags)
        return INVALID_VALUE;
    fake_lock();
    struct block *b = fake_reserve(size, VMM_GRANULE);
    if (b) {
        b->kind = BLOCK_VMM;
        *out = b->at;
    }
    fake_unlock();
    return b ? OK : OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
    CUresult rc = fake_enter("cuMemAddressFree");
    if (rc)
        return rc;
    fake_settle();
    struct block *b = fake_find(at);
    rc = b && b->at == at && b->size == size && b->kind == BLOCK_VMM && !b->memory ? OK
                                                                                   : INVALID_VALUE;
    if (!rc)
        fake_forget(b);
    fake_unlock();
    return rc;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, uint64_t handle,
                  unsigned long long flags)
{
    CUresult rc = fake_enter("cuMemMap");
    if (rc)
        return rc;
    struct physical *p = (struct physical *)(uintptr_t)handle;
    fake_lock();
    struct block *b = fake_find(at);
    rc = b && b->at == at && b->kind == BLOCK_VMM && !b->memory && !offset && !flags &&
                 size == b->size && size == p->size
             ? OK
             : INVALID_VALUE;
    if (!rc) {
        b->memory = p;
        b->accessible = false;
        p->refs++;
    }
    fake_unlock();
    return rc;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
    CUresult rc = fake_enter("cuMemUnmap");
    if (rc)
        return rc;
    fake_settle();
    struct block *b = fake_find(at);
    rc = b && b->at == at && b->size == size && b->memory && b->kind == BLOCK_VMM ? OK
                                                                                  : INVALID_VALUE;
    if (!rc) {
        fake_put(b->memory);
        b->memory = NULL;
        b->id = ++last_id;
    }
    fake_unlock();
    return rc;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const struct access *access, size_t count)
{
    CUresult rc = fake_enter("cuMemSetAccess");
    if (rc)
        return rc;
    fake_lock();
    struct block *b = fake_find(at);
    rc = b && b->memory && b->size == size && count == 1 && access->flags == 3 ? OK : INVALID_VALUE;
    if (!rc)
        b->accessible = true;
    fake_unlock();
    return rc;
}

CUresult cuMemExportToShareableHandle(void *out, uint64_t handle, int type,
                                      unsigned long long flags)
{
    CUresult rc = fake_enter("cuMemExportToShareableHandle");
    if (rc)
        return rc;
    if (type != 1 || flags)
        return INVALID_VALUE;
    int fd = fcntl(((struct physical *)(uintptr_t)handle)->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return OPERATING_SYSTEM;
    *(int *)out = fd;
    fake_count(STAT_DESCRIPTORS, 1);
    return OK;
}

CUresult cuMemImportFromShareableHandle(uint64_t *out, void *os_handle, int type)
{
    CUresult rc = fake_enter("cuMemImportFromShareableHandle");
    struct stat st;
    if (rc)
        return rc;
    int fd = (int)(intptr_t)os_handle;
    if (type != 1 || fstat(fd, &st) < 0 || st.st_size <= 0 ||
        (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return INVALID_VALUE;
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    fake_lock();
    struct physical *p = fd < 0 ? NULL : fake_wrap(fd, (size_t)st.st_size, 0);
    fake_unlock();
    if (!p && fd >= 0)
        close(fd);
    *out = (uintptr_t)p;
    return p ? OK : MAP_FAILED_;
}

/*
 * ---- attributes
 * -----------------------------------------------------------------------------------
 */

static CUresult attribute(const struct block *b, int which, void *out)
{
    switch (which) {
    case 2: *(unsigned *)out = 2; return OK; /* memory type: device */
    case 7: *(uint64_t *)out = b->id; return OK;
    case 8: *(unsigned *)out = 0; return OK; /* managed */
    case 9: *(int *)out = b->memory ? b->memory->device : 0; return OK;
    case 10: *(bool *)out = b->kind == BLOCK_ALLOC; return OK; /* CUDA IPC */
    case 11: *(CUdeviceptr *)out = b->at; return OK;
    case 12: *(size_t *)out = b->asked; return OK;
    case 13: *(bool *)out = b->memory != NULL; return OK;
    case 15: *(bool *)out = true; return OK; /* GPUDirect RDMA */
    default: return INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *out, int which, CUdeviceptr at)
{
    CUresult rc = fake_enter("cuPointerGetAttribute");
    if (rc)
        return rc;
    fake_lock();
    struct block *b = fake_find(at);
    rc = b && b->memory ? attribute(b, which, out) : INVALID_VALUE;
    fake_unlock();
    return rc;
}

CUresult cuPointerSetAttribute(const void *value, int which, CUdeviceptr at)
{
    CUresult rc = fake_enter("cuPointerSetAttribute");
    if (rc)
        return rc;
    fake_lock();
    struct block *b = fake_find(at);
    /* As in the real driver: not for memory of cuMemCreate. */
    rc = b && which == 6 && b->kind != BLOCK_VMM ? OK : INVALID_VALUE;
    if (!rc)
        b->sync_memops = *(const unsigned *)value != 0;
    fake_unlock();
    return rc;
}

/*
 * ---- pinned memory, plain copies
 * -------------------------------------------------------------------
 */

bool fake_is_pinned(const void *at, size_t n)
{
    const uint8_t *p = at;
    for (struct pinned *pin = pins; pin; pin = pin->next)
        if (p >= pin->at && (size_t)(p - pin->at) <= pin->size &&
            n <= pin->size - (size_t)(p - pin->at))
            return true;
    return false;
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuMemHostAlloc", &current);
    (void)flags;
    if (rc)
        return rc;
    struct pinned *pin = calloc(1, sizeof *pin);
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!pin || at == MAP_FAILED) {
        free(pin);
        return OUT_OF_MEMORY;
    }
    fake_lock();
    *pin = (struct pinned){ .next = pins, .at = at, .size = size };
    pins = pin;
    fake_unlock();
    *out = at;
    return OK;
}

CUresult cuMemFreeHost(void *at)
{
    CUresult rc = fake_enter("cuMemFreeHost");
    fake_settle();
    struct pinned **p = &pins;
    while (*p && (*p)->at != at)
        p = &(*p)->next;
    struct pinned *pin = *p;
    if (pin) {
        *p = pin->next;
        munmap(pin->at, pin->size);
        free(pin);
    } else if (!rc) {
        rc = INVALID_VALUE;
    }
    fake_unlock();
    return rc;
}

static CUresult now(const char *call, CUdeviceptr device, void *host, size_t n, bool to_device)
{
    CUcontext current;
    CUresult rc = fake_enter_context(call, &current);
    if (rc)
        return rc;
    fake_settle();
    uint8_t *at = fake_translate(device, n);
    if (at)
        memcpy(to_device ? at : host, to_device ? host : at, n);
    fake_unlock();
    return at ? OK : INVALID_VALUE;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n)
{
    return now("cuMemcpyHtoD_v2", to, (void *)(uintptr_t)from, n, true);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n)
{
    return now("cuMemcpyDtoH_v2", from, to, n, false);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t n)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuMemsetD8_v2", &current);
    if (rc)
        return rc;
    fake_settle();
    uint8_t *at = fake_translate(to, n);
    if (at)
        memset(at, byte, n);
    fake_unlock();
    return at ? OK : INVALID_VALUE;
}
