// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * static_mem: gives the library a static array as its memory, transfers data between two queue
 * pairs of one context (SEND, WRITE, READ, and a WRITE that fails), and proves that nothing was
 * allocated from init to close: every allocation function of this process is counted, and the size
 * of the address space is compared.
 */
#include <gdrcore.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Counting. These definitions come before the C library's in the whole process, including the
 * shared library.
 */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static volatile unsigned long counted;
#define COUNT() ((void)__atomic_add_fetch(&counted, 1, __ATOMIC_RELAXED))

void *malloc(size_t n) { return COUNT(), __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return COUNT(), __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return COUNT(), __libc_realloc(p, n); }
void *memalign(size_t align, size_t n) { return COUNT(), __libc_memalign(align, n); }
void *aligned_alloc(size_t align, size_t n) { return COUNT(), __libc_memalign(align, n); }
int posix_memalign(void **out, size_t align, size_t n)
{
    COUNT();
    *out = __libc_memalign(align, n);
    return *out ? 0 : ENOMEM;
}
void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
    COUNT();
    return (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}
void *mmap64(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
    return mmap(addr, length, prot, flags, fd, offset);
}
void *mremap(void *addr, size_t old, size_t new_length, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(args, void *) : NULL;
    va_end(args);
    COUNT();
    return (void *)syscall(SYS_mremap, addr, old, new_length, flags, to);
}

/* Pages of address space, by the kernel's count; without library calls, which could allocate. */
static unsigned long pages(void)
{
    char text[64];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    unsigned long value = 0;
    for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        value = value * 10 + (unsigned long)(text[i] - '0');
    return value;
}

/* The memory of the library and of the program. Nothing here needs a heap. */
#define ARENA_BYTES (8u << 20)
#define DATA_BYTES 65536u
#define ROUNDS 1000
static _Alignas(GDRC_CONTEXT_ALIGN) unsigned char arena[ARENA_BYTES];
static _Alignas(4096) unsigned char source[DATA_BYTES], target[DATA_BYTES];

struct pair {
    gdrc_context *ctx;
    gdrc_pd pd;
    gdrc_cq cq;
    gdrc_qp qp[2];
    gdrc_mr mr[2];
    struct gdrc_mr_attr attr[2];
};

/* One line to stderr, written without stdio: printf would allocate its buffer. */
static int fail(const char *what, int err)
{
    char text[256];
    int n = snprintf(text, sizeof text, "static_mem: %s: %s\n", what, gdrc_strerror(err));
    if (write(STDERR_FILENO, text, (size_t)n) < 0)
        _exit(1);
    return -1;
}

static int join(struct pair *p)
{
    struct gdrc_endpoint end[2];
    int err = gdrc_pd_alloc(p->ctx, &p->pd);
    if (!err)
        err = gdrc_cq_create(p->ctx, 64, &p->cq, NULL);
    for (int i = 0; i < 2 && !err; i++) {
        struct gdrc_qp_init init;
        memset(&init, 0, sizeof init);
        init.struct_size = sizeof init;
        init.qp_type = GDRC_QPT_RC;
        init.pd = p->pd;
        init.send_cq = init.recv_cq = p->cq;
        init.cap = (struct gdrc_qp_cap){
            .max_send_wr = 8,
            .max_recv_wr = 8,
            .max_send_sge = 1,
            .max_recv_sge = 1,
        };
        p->attr[i].struct_size = sizeof p->attr[i];
        end[i].struct_size = sizeof end[i];
        err = gdrc_qp_create(p->ctx, &init, &p->qp[i], NULL);
        if (!err)
            err = gdrc_mr_reg(p->ctx, p->pd, i ? target : source, DATA_BYTES,
                              GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_READ |
                                  GDRC_ACCESS_REMOTE_WRITE,
                              &p->mr[i], &p->attr[i]);
        if (!err)
            err = gdrc_endpoint_local(p->ctx, p->qp[i], &p->mr[i], &end[i]);
    }
    for (int i = 0; i < 2 && !err; i++)
        err = gdrc_qp_connect(p->ctx, p->qp[i], &end[i], &end[!i], NULL);
    return err ? fail("making a connected pair", err) : 0;
}

/* Polls `count` completions; returns the worst status, or -1. */
static int take(struct pair *p, int count)
{
    int worst = GDRC_WC_SUCCESS;
    for (long spins = 0; count > 0; spins++) {
        gdrc_wc wc[4];
        int n = gdrc_poll_cq(p->ctx, p->cq, 4, wc);
        if (n < 0 || spins > 100000000)
            return fail("polling", n < 0 ? n : -ETIMEDOUT);
        for (int i = 0; i < n; i++, count--)
            worst = wc[i].status != GDRC_WC_SUCCESS ? (int)wc[i].status : worst;
    }
    return worst;
}

/* One operation from queue pair 0 to the other side's memory, or into its receive. */
static int run(struct pair *p, uint32_t opcode, uint32_t length, uint32_t rkey)
{
    gdrc_sge from = { .addr = p->attr[0].iova, .length = length, .lkey = p->attr[0].lkey };
    gdrc_sge into = { .addr = p->attr[1].iova, .length = length, .lkey = p->attr[1].lkey };
    gdrc_recv_wr recv = { .wr_id = 1, .sg_list = &into, .num_sge = 1 };
    gdrc_send_wr send;
    memset(&send, 0, sizeof send);
    send.sg_list = &from;
    send.num_sge = 1;
    send.opcode = opcode;
    send.send_flags = GDRC_SEND_SIGNALED;
    send.wr.rdma.remote_addr = p->attr[1].iova;
    send.wr.rdma.rkey = rkey;
    int err = opcode == GDRC_WR_SEND ? gdrc_post_recv(p->ctx, p->qp[1], &recv, NULL) : 0;
    if (!err)
        err = gdrc_post_send(p->ctx, p->qp[0], &send, NULL);
    return err ? fail("posting", err) : take(p, opcode == GDRC_WR_SEND ? 2 : 1);
}

static int work(struct pair *p)
{
    static const uint32_t opcodes[] = { GDRC_WR_SEND, GDRC_WR_RDMA_WRITE, GDRC_WR_RDMA_READ };
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t length = round % 2 ? DATA_BYTES - round : 1 + round % 5000;
        for (unsigned i = 0; i < 3; i++) {
            unsigned char *from = opcodes[i] == GDRC_WR_RDMA_READ ? target : source;
            for (uint32_t at = 0; at < length; at++)
                from[at] = (unsigned char)(at * 7 + round * 3 + i);
            int status = run(p, opcodes[i], length, p->attr[1].rkey);
            if (status != GDRC_WC_SUCCESS || memcmp(source, target, length) != 0)
                return fail("an operation went wrong", -EIO);
        }
    }
    /* Errors must not allocate either. */
    if (run(p, GDRC_WR_RDMA_WRITE, 64, ~p->attr[1].rkey) != GDRC_WC_REM_ACCESS_ERR)
        return fail("a WRITE with a wrong key should end by REM_ACCESS_ERR", -EIO);
    return 0;
}

static int part(struct pair *p)
{
    int err = 0;
    for (int i = 0; i < 2; i++) {
        err = err ? err : gdrc_qp_destroy(p->ctx, p->qp[i]);
        err = err ? err : gdrc_mr_dereg(p->ctx, p->mr[i]);
    }
    err = err ? err : gdrc_cq_destroy(p->ctx, p->cq);
    err = err ? err : gdrc_pd_dealloc(p->ctx, p->pd);
    return err ? fail("taking the pair apart", err) : 0;
}

/* Lost output proves nothing. */
static bool is_written(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "static_mem: standard output could not be written\n");
    return false;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        if (!strcmp(argv[1], "-V") || !strcmp(argv[1], "--version")) {
            printf("static_mem %s\n", gdrc_version());
            return is_written() ? 0 : 1;
        }
        bool help = !strcmp(argv[1], "-h") || !strcmp(argv[1], "--help");
        if (!help)
            fprintf(stderr, "static_mem: unexpected argument '%s'\n", argv[1]);
        fprintf(help ? stdout : stderr, "usage: static_mem\n"
                                        "Runs the library in a static array and proves that "
                                        "nothing is allocated. Exits 0 if so.\n\n"
                                        "  -h, --help   this text\n"
                                        "  -V, --version\n");
        return help && is_written() ? 0 : help ? 1 : 2;
    }
    struct gdrc_config config;
    struct pair p;
    size_t bytes = 0;
    memset(&config, 0, sizeof config);
    memset(&p, 0, sizeof p);
    /* The limits that this program needs: higher ones would cost memory. */
    config.struct_size = sizeof config;
    config.max_pd = config.max_cq = config.max_ah = config.max_srq = 2;
    config.max_mr = config.max_qp = config.max_peer = 4;
    config.ring_bytes = 1 << 20;

    int err = gdrc_context_size("loopback", &config, &bytes);
    if (err) {
        fprintf(stderr, "static_mem: asking for the size: %s\n", gdrc_strerror(err));
        return 1;
    }
    printf("a context with 4 queue pairs needs %zu bytes, the static array has %u\n", bytes,
           ARENA_BYTES);
    if (bytes > sizeof arena) {
        fprintf(stderr, "static_mem: make ARENA_BYTES larger\n");
        return 1;
    }
    fflush(stdout);

    unsigned long before_init = counted;
    err = gdrc_context_init(arena, sizeof arena, "loopback", &config, &p.ctx);
    if (err) {
        char why[256];
        gdrc_error_detail(why, sizeof why);
        fprintf(stderr, "static_mem: init: %s\n", why);
        return 1;
    }
    unsigned long in_init = counted - before_init;

    unsigned long before = counted, pages_before = pages();
    err = join(&p) || work(&p) || part(&p);
    unsigned long between = counted - before, pages_after = pages();

    struct gdrc_leaks leaks;
    memset(&leaks, 0, sizeof leaks);
    leaks.struct_size = sizeof leaks;
    int left = gdrc_close(p.ctx, &leaks);

    printf("calls of malloc, calloc, realloc, memalign, mmap, mremap: %lu during init, %lu from "
           "init to close\n",
           in_init, between);
    printf("address space from init to close: %lu pages before, %lu after\n", pages_before,
           pages_after);
    if (!err)
        printf("%d SENDs, WRITEs and READs of up to %u bytes, every byte checked; one WRITE "
               "refused as it should be\n",
               3 * ROUNDS, DATA_BYTES);
    printf("objects left at close: %d\n", left);
    bool proven =
        !err && between == 0 && pages_after == pages_before && pages_before != 0 && left == 0;
    printf("%s\n", proven ? "proven: nothing was allocated" : "NOT proven");
    return is_written() && proven ? 0 : 1;
}
