// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * malloc_count.so: preloaded, it counts allocations inside the data-plane calls of libgdrcore.
 *
 * Each data-plane call is wrapped: while one runs on a thread, every malloc, calloc, realloc,
 * memalign and mmap of new memory of that thread counts. Posts and polls by a fast handle are
 * inline functions, which cannot be wrapped; so gdrc_qp_fast_get and gdrc_cq_fast_get give the
 * program a handle of this tool. With GDRC_MALLOC_ALL=1 all allocations of all threads after the
 * first gdrc_post_send count instead: then the program must not allocate either.
 *
 * The report is one line at exit, to the file GDRC_MALLOC_REPORT (appended) or to stderr:
 *   malloc_count: PROGRAM: CALLS data-plane calls, N allocations
 * With GDRC_MALLOC_FAIL=1 the process exits with 99 if N > 0.
 */
#include <gdrcore.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
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

/* Initial-exec: the first access to an ordinary thread-local would allocate. */
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
     * A reservation of addresses is no memory, and neither is a mapping of a descriptor: the ring
     * of a new peer of this host is mapped when the peer connects.
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
REAL(gdrc_qp_fast_get);
REAL(gdrc_qp_fast_put);
REAL(gdrc_cq_fast_get);
REAL(gdrc_cq_fast_put);

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
    LOOK_UP(gdrc_qp_fast_get);
    LOOK_UP(gdrc_qp_fast_put);
    LOOK_UP(gdrc_cq_fast_get);
    LOOK_UP(gdrc_cq_fast_put);
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

/*
 * The program's replacement for a fast handle: its functions are this tool's, which call the
 * library's. It is never freed, as the library's own is not.
 */
struct counted_qp {
    gdrc_qp_fast fast;
    gdrc_qp_fast *real;
};
struct counted_cq {
    gdrc_cq_fast fast;
    gdrc_cq_fast *real;
};

static int counted_post_send(gdrc_qp_fast *qp, const gdrc_send_wr *wr, const gdrc_send_wr **bad)
{
    __atomic_store_n(&armed, 1, __ATOMIC_RELAXED);
    COUNTED(gdrc_qp_fast_post_send(((struct counted_qp *)qp)->real, wr, bad));
}
static int counted_post_recv(gdrc_qp_fast *qp, const gdrc_recv_wr *wr, const gdrc_recv_wr **bad)
{
    COUNTED(gdrc_qp_fast_post_recv(((struct counted_qp *)qp)->real, wr, bad));
}
static int counted_poll(gdrc_cq_fast *cq, int num_entries, gdrc_wc *wc)
{
    COUNTED(gdrc_cq_fast_poll(((struct counted_cq *)cq)->real, num_entries, wc));
}
static const gdrc_qp_fast_ops counted_qp_ops = { counted_post_send, counted_post_recv };
static const gdrc_cq_fast_ops counted_cq_ops = { counted_poll };

int gdrc_qp_fast_get(gdrc_context *ctx, gdrc_qp qp, gdrc_qp_fast **out)
{
    int err = real_gdrc_qp_fast_get(ctx, qp, out);
    struct counted_qp *own = err ? NULL : __libc_malloc(sizeof *own);
    if (own) {
        *own = (struct counted_qp){ { &counted_qp_ops }, *out };
        *out = &own->fast;
    }
    return err;
}
int gdrc_cq_fast_get(gdrc_context *ctx, gdrc_cq cq, gdrc_cq_fast **out)
{
    int err = real_gdrc_cq_fast_get(ctx, cq, out);
    struct counted_cq *own = err ? NULL : __libc_malloc(sizeof *own);
    if (own) {
        *own = (struct counted_cq){ { &counted_cq_ops }, *out };
        *out = &own->fast;
    }
    return err;
}
int gdrc_qp_fast_put(gdrc_qp_fast *qp)
{
    bool is_own = qp && qp->ops == &counted_qp_ops;
    return real_gdrc_qp_fast_put(is_own ? ((struct counted_qp *)qp)->real : qp);
}
int gdrc_cq_fast_put(gdrc_cq_fast *cq)
{
    bool is_own = cq && cq->ops == &counted_cq_ops;
    return real_gdrc_cq_fast_put(is_own ? ((struct counted_cq *)cq)->real : cq);
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
