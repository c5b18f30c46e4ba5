/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A libcuda.so.1 for tests: the driver calls that gdrcore makes, over host memory. It enforces what
 * a GPU enforces:
 *
 * - "device" memory is PROT_NONE at its device address: a CPU access faults, only copies reach it;
 * - asynchronous copies happen later, on a thread per stream, in the stream's order;
 * - calls need a current context, an event belongs to the context that made it;
 * - a freed address may be reused, with another buffer id;
 * - memory is passed between processes by handle or by descriptor, and may outlive its creator;
 * - an error of 700 and above is sticky: the context is lost.
 *
 * Environment, read at cuInit:
 *   FAKECUDA_DEVICES  PCI addresses, comma-separated (0000:b7:00.0); empty: none
 *   FAKECUDA_MEMORY   bytes per device (8 GiB)
 *   FAKECUDA_DELAY_US of each asynchronous copy (20)
 *   FAKECUDA_DMABUF   0: unsupported; 1: descriptors that cannot be mapped (default); 2: they can
 *   FAKECUDA_VMM      0: no virtual memory management (1)
 *   FAKECUDA_FAIL     "call=code[@n]", comma-separated: from the nth call on it returns the code
 *
 * fakecuda_* at the end of this file are for tests in the same process.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct { char bytes[64]; } CUipcMemHandle;

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    MAP_FAILED_ = 205,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999,
};

struct context {
    CUdevice device;
    unsigned retained;
};

/* Physical memory: a memfd and our own view of it. */
struct physical {
    int fd;
    uint8_t *view;
    size_t size;
    unsigned refs;
    CUdevice device;
    uint64_t inode;
};

/* A range of device addresses. */
struct block {
    struct block *next;
    CUdeviceptr at;
    size_t size, asked;
    struct physical *memory; /* NULL: reserved and not mapped */
    uint64_t id;
    enum { BLOCK_ALLOC, BLOCK_VMM, BLOCK_IPC } kind;
    bool accessible, sync_memops, managed_elsewhere;
};

/* The one lock of everything but the streams' queues. */
void fake_lock(void);
void fake_unlock(void);

/*
 * Start of every call: checks that the driver is initialised, not forked, not set to fail, and the
 * context not lost.
 */
CUresult fake_enter(const char *call);
/* As fake_enter; also requires a current context. */
CUresult fake_enter_context(const char *call, CUcontext *current);
/* An error of the device itself: later calls fail with it too. */
void fake_lose(CUresult code);

/* Where `n` bytes at a device address lie in our view, or NULL. Under the lock. */
uint8_t *fake_translate(CUdeviceptr at, size_t n);
/* Whether the range is pinned host memory. Under the lock. */
bool fake_is_pinned(const void *at, size_t n);
/* Waits until every stream is empty. */
void fake_drain(void);
/* Waits for the operations under way, as freeing does, then takes the lock. */
void fake_settle(void);
unsigned fake_delay_us(void);
uint64_t fake_memory_limit(void);
int fake_option(const char *name, int otherwise);

/* Device pages; addresses are aligned to them. */
#define GRANULE (64u << 10)
/*
 * Under the lock: make a view of a descriptor, which it takes over; drop a reference; find the
 * block of an address; reserve addresses; free them.
 */
struct physical *fake_wrap(int fd, size_t size, CUdevice device);
void fake_put(struct physical *p);
struct block *fake_find(CUdeviceptr at);
struct block *fake_reserve(size_t asked, size_t granule);
void fake_forget(struct block *b);

enum fake_stat { STAT_COPIES, STAT_PAGEABLE, STAT_BYTES, STAT_DESCRIPTORS, STAT_BLOCKS, STAT_MAX };
void fake_count(enum fake_stat what, uint64_t by);

/*
 * For tests. Makes a call return `code`: the next `after` calls succeed, then `times` calls fail
 * (0: all). Code 0 ends the failures.
 */
void fakecuda_fail(const char *call, int code, unsigned after, unsigned times);
/* Sets an option of the environment at run time. */
void fakecuda_option(const char *name, int value);
/* Makes the device lost, with this error; 0 restores it. */
void fakecuda_lose(int code);
uint64_t fakecuda_stat(unsigned what);

#endif
