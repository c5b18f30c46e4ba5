// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cma: rate of the kernel's copies between two processes (process_vm_writev and process_vm_readv),
 * each process on its core.
 *
 * cma [-n BYTES] CORE CORE      moves so many bytes (8 GiB) of each size by each call
 *
 * A message counts when the other process has seen its number in shared memory and answered, as a
 * completion would; that process does nothing else. `memcpy` is a copy within one process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LARGEST (64u << 20)

enum way { PUSH, PULL, COPY, WAYS };
static const char *const names[WAYS] = { "process_vm_writev", "process_vm_readv", "memcpy" };

/*
 * On cache lines of their own, so that the writer of one does not disturb the reader of the other.
 */
struct shared {
    _Alignas(128) _Atomic uint64_t sent;
    _Alignas(128) _Atomic uint64_t seen;
    _Alignas(128) _Atomic(uint8_t *) buffer;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int pin(const char *core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)atoi(core) % CPU_SETSIZE, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

/* Memory with every page written. */
static uint8_t *memory(int value)
{
    uint8_t *at = mmap(NULL, LARGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : memset(at, value, LARGEST);
}

static int peer(struct shared *s, const char *core)
{
    uint8_t *own = memory(2);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pin(core) || !own)
        return 1;
    atomic_store(&s->buffer, own);
    for (;;)
        atomic_store(&s->seen, atomic_load(&s->sent));
}

static int move(enum way way, pid_t pid, uint8_t *own, uint8_t *other, uint8_t *second, size_t size)
{
    struct iovec here = { own, size }, there = { other, size };
    if (way == COPY)
        return memcpy(second, own, size) ? 0 : -1;
    ssize_t n = way == PUSH ? process_vm_writev(pid, &here, 1, &there, 1, 0)
                            : process_vm_readv(pid, &here, 1, &there, 1, 0);
    return n == (ssize_t)size ? 0 : -1;
}

int main(int argc, char **argv)
{
    uint64_t bytes = 8ull << 30;
    for (int c; (c = getopt(argc, argv, "n:")) != -1;)
        bytes = c == 'n' ? strtoull(optarg, NULL, 0) : 0;
    struct shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc - optind != 2 || !bytes || s == MAP_FAILED) {
        fprintf(stderr, "usage: cma [-n BYTES] CORE CORE\n");
        return 2;
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(peer(s, argv[optind + 1]));
    uint8_t *own = memory(1), *second = memory(3), *other = NULL;
    int bad = pid < 0 || pin(argv[optind]) || !own || !second;
    for (uint64_t end = now_ns() + 5000000000u; !bad && !(other = atomic_load(&s->buffer));)
        bad = now_ns() > end;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%-18s %10s %10s\n", "", "bytes", "MB/s");
    for (enum way way = 0; way < WAYS && !bad; way++) {
        for (size_t size = 4096; size <= LARGEST && !bad; size *= 4) {
            /* The first pass warms the caches. */
            uint64_t n = bytes / size / (size < 65536 ? 8 : 1), start = 0;
            for (uint64_t i = 0; i < n + 4 && !bad; i++) {
                if (i == 4)
                    start = now_ns();
                bad = move(way, pid, own, other, second, size);
                uint64_t number = atomic_load(&s->sent) + 1;
                atomic_store(&s->sent, number);
                while (way != COPY && !bad && atomic_load(&s->seen) != number)
                    ;
            }
            if (!bad)
                printf("%-18s %10zu %10.0f\n", names[way], size,
                       (double)(n * size) / (double)(now_ns() - start) * 1000.0);
        }
    }
    if (bad)
        fprintf(stderr, "cma: %s\n", strerror(errno));
    if (pid > 0)
        kill(pid, SIGKILL);
    return bad;
}
