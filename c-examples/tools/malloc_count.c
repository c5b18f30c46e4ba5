// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * malloc_count.so: LD_PRELOAD it to count allocations inside the data-plane calls of libgdrcore.
 *
 * Each data-plane call is wrapped: while one runs on a thread, every malloc, calloc, realloc,
 * memalign and mmap of new memory of that thread counts. Posts and polls through a pin are inline
 * functions, which nothing can wrap. So gdrc_qp_pin and gdrc_cq_pin give the program a pin of this
 * tool, one of zeros: such a pin sends the inline functions the long way, and that is wrapped. With
 * GDRC_MALLOC_ALL=1 everything that any thread allocates after the first gdrc_post_send counts
 * instead: then the program must not allocate either.
 *
 * The report is one line, to the file GDRC_MALLOC_REPORT (appended) or to stderr, at exit:
 *   malloc_count: PROGRAM: CALLS data-plane calls, N allocations
 * and with GDRC_MALLOC_FAIL=1 the process exits with 99 if N > 0.
 */
#include <gdrcore.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern char *program_invocation_short_name;

/* Initial-exec: the first use of an ordinary thread-local would allocate. */
static __thread int depth __attribute__((tls_model("initial-exec")));
static unsigned long calls, allocations;
static int count_all, armed;

static void count(void)
{
    if (depth > 0 || (count_all && __atomic_load_n(&armed, __ATOMIC_RELAXED)))
        __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t n) { return count(), __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return count(), __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return count(), __libc_realloc(p, n); }
void *memalign(size_t align, size_t n) { return count(), __libc_memalign(align, n); }
void *aligned_alloc(size_t align, size_t n) { return count(), __libc_memalign(align, n); }
int posix_memalign(void **out, size_t align, size_t n)
{
    count();
    *out = __libc_memalign(align, n);
    return *out ? 0 : ENOMEM;
}
void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
    /*
     * A reservation of addresses is no memory, and neither is a mapping of a descriptor's: the ring
     * that a new peer of this host has made is mapped when it comes.
     */
    if (prot != PROT_NONE && (flags & MAP_ANONYMOUS))
        count();
    return (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}
void *mmap64(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
    return mmap(addr, length, prot, flags, fd, offset);
}

/* The next definition of a name. Looked up before main(): dlsym may allocate. */
#define REAL(name) static __typeof__(name) *real_##name
REAL(gdrc_post_send);
REAL(gdrc_post_recv);
REAL(gdrc_post_srq_recv);
REAL(gdrc_poll_cq);
REAL(gdrc_progress);
REAL(gdrc_cq_arm);
REAL(gdrc_get_cq_event);
REAL(gdrc_get_async_event);
REAL(gdrc_arm);
REAL(gdrc_wait);
REAL(gdrc_qp_pin);
REAL(gdrc_qp_unpin);
REAL(gdrc_cq_pin);
REAL(gdrc_cq_unpin);
REAL(gdrc_pinned_send_rest);
REAL(gdrc_pinned_recv_rest);
REAL(gdrc_pinned_poll_rest);

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    /* A program that does not link the library calls none of these. */
    return found;
}

__attribute__((constructor)) static void start(void)
{
#define LOOK_UP(name) *(void **)&real_##name = next(#name)
    LOOK_UP(gdrc_post_send);
    LOOK_UP(gdrc_post_recv);
    LOOK_UP(gdrc_post_srq_recv);
    LOOK_UP(gdrc_poll_cq);
    LOOK_UP(gdrc_progress);
    LOOK_UP(gdrc_cq_arm);
    LOOK_UP(gdrc_get_cq_event);
    LOOK_UP(gdrc_get_async_event);
    LOOK_UP(gdrc_arm);
    LOOK_UP(gdrc_wait);
    LOOK_UP(gdrc_qp_pin);
    LOOK_UP(gdrc_qp_unpin);
    LOOK_UP(gdrc_cq_pin);
    LOOK_UP(gdrc_cq_unpin);
    LOOK_UP(gdrc_pinned_send_rest);
    LOOK_UP(gdrc_pinned_recv_rest);
    LOOK_UP(gdrc_pinned_poll_rest);
    const char *all = getenv("GDRC_MALLOC_ALL");
    count_all = all && *all == '1';
}

/* Runs a call inside which every allocation counts. */
#define COUNTED(call)                                     \
    do {                                                  \
        __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);  \
        depth++;                                          \
        int result = call;                                \
        depth--;                                          \
        return result;                                    \
    } while (0)
#define INSIDE(call) COUNTED(real_##call)

int gdrc_post_send(gdrc_context *ctx, gdrc_qp qp, const gdrc_send_wr *wr, const gdrc_send_wr **bad)
{
    __atomic_store_n(&armed, 1, __ATOMIC_RELAXED);
    INSIDE(gdrc_post_send(ctx, qp, wr, bad));
}
int gdrc_post_recv(gdrc_context *ctx, gdrc_qp qp, const gdrc_recv_wr *wr, const gdrc_recv_wr **bad)
{
    INSIDE(gdrc_post_recv(ctx, qp, wr, bad));
}
int gdrc_post_srq_recv(gdrc_context *ctx, gdrc_srq srq, const gdrc_recv_wr *wr,
                       const gdrc_recv_wr **bad)
{
    INSIDE(gdrc_post_srq_recv(ctx, srq, wr, bad));
}
int gdrc_poll_cq(gdrc_context *ctx, gdrc_cq cq, int n, gdrc_wc *wc)
{
    INSIDE(gdrc_poll_cq(ctx, cq, n, wc));
}
int gdrc_progress(gdrc_context *ctx) { INSIDE(gdrc_progress(ctx)); }
int gdrc_cq_arm(gdrc_context *ctx, gdrc_cq cq, int solicited)
{
    INSIDE(gdrc_cq_arm(ctx, cq, solicited));
}
int gdrc_get_cq_event(gdrc_context *ctx, gdrc_cq *out) { INSIDE(gdrc_get_cq_event(ctx, out)); }
int gdrc_get_async_event(gdrc_context *ctx, struct gdrc_async_event *out)
{
    INSIDE(gdrc_get_async_event(ctx, out));
}
int gdrc_arm(gdrc_context *ctx) { INSIDE(gdrc_arm(ctx)); }
int gdrc_wait(gdrc_context *ctx, int timeout_ms) { INSIDE(gdrc_wait(ctx, timeout_ms)); }

/* As many pins of each kind as a process can have. */
#define PINS 8192

/*
 * What the program gets in place of a pin. The row stays all 0; `real` is NULL while nobody has it.
 */
static struct qp_pin {
    struct gdrc_pinned_qp row;
    const struct gdrc_pinned_qp *real;
} qp_pins[PINS];
static struct cq_pin {
    struct gdrc_pinned_cq row;
    const struct gdrc_pinned_cq *real;
} cq_pins[PINS];

/*
 * Puts the pin in *out into a free entry, and the entry's row into *out. A full table leaves the
 * pin as it is.
 */
#define HIDE(table, out)                                                                    \
    for (size_t i = 0; i < PINS; i++) {                                                     \
        __typeof__(*(out)) none = NULL;                                                     \
        if (__atomic_compare_exchange_n(&table[i].real, &none, *(out), 0, __ATOMIC_ACQ_REL, \
                                        __ATOMIC_RELAXED)) {                                \
            *(out) = &table[i].row;                                                         \
            break;                                                                          \
        }                                                                                   \
    }

static struct qp_pin *own_qp_pin(const struct gdrc_pinned_qp *pin)
{
    uintptr_t at = (uintptr_t)pin - (uintptr_t)qp_pins;
    return at < sizeof qp_pins ? &qp_pins[at / sizeof *qp_pins] : NULL;
}

static struct cq_pin *own_cq_pin(const struct gdrc_pinned_cq *pin)
{
    uintptr_t at = (uintptr_t)pin - (uintptr_t)cq_pins;
    return at < sizeof cq_pins ? &cq_pins[at / sizeof *cq_pins] : NULL;
}

int gdrc_qp_pin(gdrc_context *ctx, gdrc_qp qp, const struct gdrc_pinned_qp **out)
{
    int err = real_gdrc_qp_pin(ctx, qp, out);
    if (!err)
        HIDE(qp_pins, out)
    return err;
}
int gdrc_cq_pin(gdrc_context *ctx, gdrc_cq cq, const struct gdrc_pinned_cq **out)
{
    int err = real_gdrc_cq_pin(ctx, cq, out);
    if (!err)
        HIDE(cq_pins, out)
    return err;
}
int gdrc_qp_unpin(const struct gdrc_pinned_qp *pin)
{
    struct qp_pin *own = own_qp_pin(pin);
    return real_gdrc_qp_unpin(own ? __atomic_exchange_n(&own->real, NULL, __ATOMIC_ACQ_REL) : pin);
}
int gdrc_cq_unpin(const struct gdrc_pinned_cq *pin)
{
    struct cq_pin *own = own_cq_pin(pin);
    return real_gdrc_cq_unpin(own ? __atomic_exchange_n(&own->real, NULL, __ATOMIC_ACQ_REL) : pin);
}

/*
 * The inline functions, with the pin that the library made, are called here. What they in turn
 * leave to the library arrives here again, and goes on to it. A pin that was given back is one of
 * zeros, as the library's own would be.
 */
int gdrc_pinned_send_rest(const struct gdrc_pinned_qp *pin, const gdrc_send_wr *wr,
                          const gdrc_send_wr **bad)
{
    struct qp_pin *own = own_qp_pin(pin);
    const struct gdrc_pinned_qp *real = own ? __atomic_load_n(&own->real, __ATOMIC_ACQUIRE) : NULL;
    if (!real)
        return real_gdrc_pinned_send_rest(pin, wr, bad);
    __atomic_store_n(&armed, 1, __ATOMIC_RELAXED);
    COUNTED(gdrc_pinned_post_send(real, wr, bad));
}
int gdrc_pinned_recv_rest(const struct gdrc_pinned_qp *pin, const gdrc_recv_wr *wr,
                          const gdrc_recv_wr **bad)
{
    struct qp_pin *own = own_qp_pin(pin);
    const struct gdrc_pinned_qp *real = own ? __atomic_load_n(&own->real, __ATOMIC_ACQUIRE) : NULL;
    if (!real)
        return real_gdrc_pinned_recv_rest(pin, wr, bad);
    COUNTED(gdrc_pinned_post_recv(real, wr, bad));
}
int gdrc_pinned_poll_rest(const struct gdrc_pinned_cq *pin, int num_entries, gdrc_wc *wc)
{
    struct cq_pin *own = own_cq_pin(pin);
    const struct gdrc_pinned_cq *real = own ? __atomic_load_n(&own->real, __ATOMIC_ACQUIRE) : NULL;
    if (!real)
        return real_gdrc_pinned_poll_rest(pin, num_entries, wc);
    COUNTED(gdrc_pinned_poll_cq(real, num_entries, wc));
}

__attribute__((destructor)) static void report(void)
{
    char line[256];
    unsigned long found = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
    const char *path = getenv("GDRC_MALLOC_REPORT"), *strict = getenv("GDRC_MALLOC_FAIL");
    int n = snprintf(line, sizeof line, "malloc_count: %s: %lu data-plane calls, %lu allocations\n",
                     program_invocation_short_name, calls, found);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : STDERR_FILENO;
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        fprintf(stderr, "%s", line);
    if (path && fd >= 0)
        close(fd);
    if (strict && *strict == '1' && found > 0)
        _exit(99);
}
