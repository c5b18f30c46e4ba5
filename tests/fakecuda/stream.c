/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Streams and events: a thread per stream executes its operations in order, a copy no earlier than
 * its delay after the call.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

struct op {
    struct op *next;
    enum { OP_TO_DEVICE, OP_TO_HOST, OP_RECORD, OP_WAIT } kind;
    CUdeviceptr device;
    void *host;
    size_t n;
    CUevent event;
    uint64_t ticket;
    struct timespec due;
};

struct event {
    CUcontext context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, done; /* tickets */
    unsigned refs;
};

struct stream {
    CUcontext context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct op *first, *last;
    bool ends, busy;
    struct stream *next;
};

/*
 * A lock of its own: a thread that waits for streams holds it, and the streams' copies take the
 * common one.
 */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;

static void drop_event(CUevent e)
{
    pthread_mutex_lock(&e->lock);
    unsigned left = --e->refs;
    pthread_mutex_unlock(&e->lock);
    if (!left)
        free(e);
}

static void wait_event(CUevent e, uint64_t ticket)
{
    pthread_mutex_lock(&e->lock);
    while (e->done < ticket)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static void copy(const struct op *op)
{
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &op->due, NULL) == EINTR)
        ;
    fake_lock();
    uint8_t *at = fake_translate(op->device, op->n);
    if (!at)
        fake_lose(ILLEGAL_ADDRESS);
    else
        memcpy(op->kind == OP_TO_DEVICE ? at : op->host, op->kind == OP_TO_DEVICE ? op->host : at,
               op->n);
    fake_unlock();
    fake_count(STAT_COPIES, 1);
    fake_count(STAT_BYTES, op->n);
}

static void *run(void *arg)
{
    struct stream *s = arg;
    /* Minimal timer slack: otherwise a delay of 20 us would be 70. */
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->ends)
            pthread_cond_wait(&s->changed, &s->lock);
        struct op *op = s->first;
        if (!op)
            break;
        s->first = op->next;
        if (!s->first)
            s->last = NULL;
        s->busy = true;
        pthread_mutex_unlock(&s->lock);
        if (op->kind == OP_WAIT) {
            wait_event(op->event, op->ticket);
            drop_event(op->event);
        } else if (op->kind == OP_RECORD) {
            pthread_mutex_lock(&op->event->lock);
            op->event->done = op->ticket;
            pthread_cond_broadcast(&op->event->changed);
            pthread_mutex_unlock(&op->event->lock);
            drop_event(op->event);
        } else {
            copy(op);
        }
        free(op);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static CUresult push(CUstream s, struct op op)
{
    struct op *made = malloc(sizeof *made);
    if (!made)
        return OUT_OF_MEMORY;
    *made = op;
    made->next = NULL;
    clock_gettime(CLOCK_MONOTONIC, &made->due);
    made->due.tv_nsec += (long)(fake_delay_us() % 1000000) * 1000;
    made->due.tv_sec += (long)(fake_delay_us() / 1000000) + made->due.tv_nsec / 1000000000;
    made->due.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->lock);
    if (s->last)
        s->last->next = made;
    else
        s->first = made;
    s->last = made;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

static void dry(CUstream s)
{
    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void fake_drain(void)
{
    pthread_mutex_lock(&streams_lock);
    for (struct stream *s = streams; s; s = s->next)
        dry(s);
    pthread_mutex_unlock(&streams_lock);
}

CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuStreamCreate", &current);
    (void)flags;
    if (rc)
        return rc;
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return OUT_OF_MEMORY;
    s->context = current;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, run, s)) {
        free(s);
        return OPERATING_SYSTEM;
    }
    pthread_mutex_lock(&streams_lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&streams_lock);
    *out = s;
    return OK;
}

CUresult cuStreamDestroy_v2(CUstream s)
{
    CUresult rc = fake_enter("cuStreamDestroy_v2");
    pthread_mutex_lock(&streams_lock);
    struct stream **at = &streams;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at)
        *at = s->next;
    pthread_mutex_unlock(&streams_lock);
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free(s);
    return rc;
}

CUresult cuStreamSynchronize(CUstream s)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuStreamSynchronize", &current);
    if (rc)
        return rc;
    /* Without a stream: calls that have none are complete when they return. */
    if (s)
        dry(s);
    return fake_enter("cuStreamSynchronize");
}

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuEventCreate", &current);
    (void)flags;
    if (rc)
        return rc;
    struct event *e = calloc(1, sizeof *e);
    if (!e)
        return OUT_OF_MEMORY;
    e->context = current;
    e->refs = 1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    *out = e;
    return OK;
}

CUresult cuEventDestroy_v2(CUevent e)
{
    CUresult rc = fake_enter("cuEventDestroy_v2");
    drop_event(e);
    return rc;
}

static uint64_t use(CUevent e, bool record)
{
    pthread_mutex_lock(&e->lock);
    e->refs++;
    uint64_t ticket = record ? ++e->recorded : e->recorded;
    pthread_mutex_unlock(&e->lock);
    return ticket;
}

CUresult cuEventRecord(CUevent e, CUstream s)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuEventRecord", &current);
    if (rc)
        return rc;
    if (!e || !s || e->context != s->context)
        return INVALID_HANDLE;
    return push(s, (struct op){ .kind = OP_RECORD, .event = e, .ticket = use(e, true) });
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuStreamWaitEvent", &current);
    (void)flags;
    if (rc)
        return rc;
    if (!e || !s)
        return INVALID_HANDLE;
    return push(s, (struct op){ .kind = OP_WAIT, .event = e, .ticket = use(e, false) });
}

CUresult cuEventQuery(CUevent e)
{
    CUcontext current;
    CUresult rc = fake_enter_context("cuEventQuery", &current);
    if (rc)
        return rc;
    if (current != e->context)
        return INVALID_CONTEXT;
    pthread_mutex_lock(&e->lock);
    bool done = e->done >= e->recorded;
    pthread_mutex_unlock(&e->lock);
    return done ? OK : NOT_READY;
}

static CUresult later(const char *call, CUdeviceptr device, void *host, size_t n, CUstream s,
                      int kind)
{
    CUcontext current;
    CUresult rc = fake_enter_context(call, &current);
    if (rc)
        return rc;
    if (!s || s->context != current)
        return INVALID_HANDLE;
    fake_lock();
    bool there = fake_translate(device, n) != NULL, pinned = fake_is_pinned(host, n);
    fake_unlock();
    if (!there)
        return INVALID_VALUE;
    if (!pinned)
        fake_count(STAT_PAGEABLE, 1);
    rc = push(s, (struct op){ .kind = kind, .device = device, .host = host, .n = n });
    /* A driver copies from pageable memory before it returns, since the bytes could change. */
    if (!rc && !pinned)
        dry(s);
    return rc;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s)
{
    return later("cuMemcpyHtoDAsync_v2", to, (void *)(uintptr_t)from, n, s, OP_TO_DEVICE);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s)
{
    return later("cuMemcpyDtoHAsync_v2", from, to, n, s, OP_TO_HOST);
}
