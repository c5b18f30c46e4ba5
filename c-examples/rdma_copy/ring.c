// SPDX-License-Identifier: MIT OR Apache-2.0
/* The ring of slots between two threads, and the wire format of records. */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
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

static void put_words(uint8_t *at, const uint64_t *words, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        gx_put64(at + 8 * i, words[i]);
}

void end_put(uint8_t at[END_BYTES], const struct copy_end *e)
{
    put_words(at, (const uint64_t[]){ e->files, e->bytes, e->kept }, 3);
}

void end_get(const uint8_t at[END_BYTES], struct copy_end *e)
{
    *e = (struct copy_end){
        .files = gx_get64(at),
        .bytes = gx_get64(at + 8),
        .kept = gx_get64(at + 16),
    };
}

void answer_put(uint8_t at[ANSWER_BYTES], const struct answer *a)
{
    put_words(at, (const uint64_t[]){ a->type, a->hash, a->size, a->mtime, a->offset }, 5);
}

void answer_get(const uint8_t at[ANSWER_BYTES], struct answer *a)
{
    *a = (struct answer){
        .type = gx_get64(at),
        .hash = gx_get64(at + 8),
        .size = gx_get64(at + 16),
        .mtime = gx_get64(at + 24),
        .offset = gx_get64(at + 32),
    };
}

/* FNV-1a of 64 bits. */
uint64_t path_hash(const char *path)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *path; path++)
        hash = (hash ^ (uint8_t)*path) * 0x100000001b3u;
    return hash;
}

bool target_put(uint8_t at[TARGET_BYTES], uint64_t device, uint64_t inode)
{
    /* The kernel's boot id, drawn at each boot: "xxxxxxxx-xxxx-...". */
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    memset(at, 0, TARGET_BYTES);
    if (n < 36)
        return false;
    gx_put64(at, path_hash(text));
    memcpy(at + 8, text, 8);
    gx_put64(at + 16, device);
    gx_put64(at + 24, inode);
    return true;
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

/*
 * Taking the lock orders our store before the worker's next look at the condition: no wake-up is
 * lost.
 */
void ring_wake_worker(struct ring *r)
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
    ring_wake_worker(r);
}

void ring_set_consumed(struct ring *r, uint32_t value)
{
    if (atomic_load_explicit(&r->consumed, memory_order_relaxed) == value)
        return;
    atomic_store_explicit(&r->consumed, value, memory_order_release);
    ring_wake_worker(r);
}

void ring_stop(struct ring *r)
{
    atomic_store(&r->stop, true);
    ring_wake_worker(r);
}

bool ring_wait(struct ring *r, bool (*ready)(const void *of), const void *of)
{
    for (bool locked = false;; locked = true) {
        bool stop = atomic_load(&r->stop);
        if (stop || ready(of)) {
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

static uint32_t filled(const struct ring *r)
{
    return atomic_load_explicit(&r->produced, memory_order_acquire) -
           atomic_load_explicit(&r->consumed, memory_order_acquire);
}

static bool has_free(const void *ring)
{
    const struct ring *r = ring;
    return filled(r) < r->depth;
}
static bool has_filled(const void *ring) { return filled(ring) > 0; }

bool ring_wait_free(struct ring *r) { return ring_wait(r, has_free, r); }
bool ring_wait_filled(struct ring *r) { return ring_wait(r, has_filled, r); }

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
