// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What a cache line takes from one core to another and back: the floor of a message by way of a
 * thread on another core, such as a router's in remote mode. By hand:
 *
 *   cc -O2 -pthread -o crossing bench/compare/crossing.c && ./crossing
 *
 * prints nanoseconds: the least, the median and nine in ten of 200,000.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 200000 };

/* Each in a pair of cache lines of its own: lines are fetched in pairs. */
static _Alignas(128) _Atomic uint32_t there;
static _Alignas(128) _Atomic uint32_t back;
static _Alignas(128) uint64_t took[ROUNDS];

static void run_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        exit((perror("sched_setaffinity"), 1));
}

static void wait_for(_Atomic uint32_t *word, uint32_t n)
{
    while (atomic_load_explicit(word, memory_order_acquire) != n)
        ;
}

static void *answer(void *none)
{
    run_on(0);
    for (uint32_t n = 1; n <= ROUNDS; n++) {
        wait_for(&there, n);
        atomic_store_explicit(&back, n, memory_order_release);
    }
    return none;
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_length(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    pthread_t other;
    if (pthread_create(&other, NULL, answer, NULL))
        return perror("pthread_create"), 1;
    run_on(1);
    for (uint32_t n = 1; n <= ROUNDS; n++) {
        uint64_t begin = now();
        atomic_store_explicit(&there, n, memory_order_release);
        wait_for(&back, n);
        took[n - 1] = now() - begin;
    }
    pthread_join(other, NULL);
    qsort(took, ROUNDS, sizeof took[0], by_length);
    printf("least %lu, median %lu, nine in ten %lu ns\n", (unsigned long)took[0],
           (unsigned long)took[ROUNDS / 2], (unsigned long)took[ROUNDS * 9 / 10]);
    return 0;
}
