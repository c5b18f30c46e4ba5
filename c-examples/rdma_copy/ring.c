// SPDX-License-Identifier: MIT OR Apache-2.0
#include "copy.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

void record_put(uint8_t at[RECORD_BYTES], const struct record *r)
{
    gx_put16(at, r->type);
    gx_put16(at + 2, r->mode);
    gx_put32(at + 4, r->length);
    gx_put64(at + 8, r->a);
    gx_put64(at + 16, r->b);
}

void record_get(const uint8_t at[RECORD_BYTES], struct record *r)
{
    r->type = gx_get16(at);
    r->mode = gx_get16(at + 2);
    r->length = gx_get32(at + 4);
    r->a = gx_get64(at + 8);
    r->b = gx_get64(at + 16);
}

int ring_init(struct ring *r, uint8_t *base, uint32_t size, uint32_t depth, int wake_fd)
{
    memset(r, 0, sizeof *r);
    r->base = base;
    r->size = size;
    r->depth = depth;
    r->wake_fd = wake_fd;
    int err = pthread_mutex_init(&r->lock, NULL);
    if (!err && (err = pthread_cond_init(&r->change, NULL)) != 0)
        pthread_mutex_destroy(&r->lock);
    return -err;
}

void ring_destroy(struct ring *r)
{
    pthread_cond_destroy(&r->change);
    pthread_mutex_destroy(&r->lock);
}

/* Taking the lock orders our store before the worker's next look at the condition: no wake-up is lost. */
static void wake_worker(struct ring *r)
{
    pthread_mutex_lock(&r->lock);
    bool sleeping = r->sleeping;
    pthread_mutex_unlock(&r->lock);
    if (sleeping)
        pthread_cond_signal(&r->change);
}

void ring_set_produced(struct ring *r, uint32_t value)
{
    if (atomic_load_explicit(&r->produced, memory_order_relaxed) == value)
        return;
    atomic_store_explicit(&r->produced, value, memory_order_release);
    wake_worker(r);
}

void ring_set_consumed(struct ring *r, uint32_t value)
{
    if (atomic_load_explicit(&r->consumed, memory_order_relaxed) == value)
        return;
    atomic_store_explicit(&r->consumed, value, memory_order_release);
    wake_worker(r);
}

void ring_stop(struct ring *r)
{
    atomic_store(&r->stop, true);
    wake_worker(r);
}

static bool wait_until(struct ring *r, bool want_free)
{
    for (bool locked = false;; locked = true) {
        uint32_t filled = atomic_load_explicit(&r->produced, memory_order_acquire) - atomic_load_explicit(&r->consumed, memory_order_acquire);
        bool stop = atomic_load(&r->stop);
        if (stop || (want_free ? filled < r->depth : filled > 0)) {
            if (locked) {
                r->sleeping = false;
                pthread_mutex_unlock(&r->lock);
            }
            return !stop;
        }
        if (!locked) {
            pthread_mutex_lock(&r->lock);
            r->sleeping = true;
        } else {
            pthread_cond_wait(&r->change, &r->lock);
        }
    }
}

bool ring_wait_free(struct ring *r) { return wait_until(r, true); }
bool ring_wait_filled(struct ring *r) { return wait_until(r, false); }

void ring_wake_engine(struct ring *r)
{
    uint64_t one = 1;
    ssize_t n;
    do
        n = write(r->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

void ring_finish(struct ring *r, int error, const char *fmt, ...)
{
    r->error = error;
    if (fmt) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(r->why, sizeof r->why, fmt, args);
        va_end(args);
    }
    atomic_store(&r->finished, true);
    ring_wake_engine(r);
}
