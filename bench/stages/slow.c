// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * slow: a preloaded clock that runs as slowly as a program does under callgrind. Without it,
 * actions that happen once in so many microseconds would be counted for each message.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

#ifndef TIMES
#define TIMES 100
#endif

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    int err = next(clock, ts);
    if (!err && clock == CLOCK_MONOTONIC) {
        uint64_t ns = ((uint64_t)ts->tv_sec * 1000000000u + (uint64_t)ts->tv_nsec) / TIMES;
        ts->tv_sec = (time_t)(ns / 1000000000u);
        ts->tv_nsec = (long)(ns % 1000000000u);
    }
    return err;
}
