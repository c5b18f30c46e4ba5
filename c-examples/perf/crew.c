// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The threads of one end (--threads): each has a CQ, queue pairs, buffers and a connection to its
 * thread at the other end. They begin each run together, and their outcomes are added.
 */
#include "perf.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t count, arrived;
    uint64_t times; /* that all have met */
    int err;        /* why one has left; no other waits for it */
    struct outcome mine[MAX_THREADS], theirs[MAX_THREADS];
    int ends[MAX_THREADS];
} crew = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .count = 1 };

/* Waits for all others. `err`: this one will not come again. Returns 0 when all are here. */
static int meet(int err)
{
    pthread_mutex_lock(&crew.lock);
    if (err && !crew.err)
        crew.err = err;
    uint64_t times = crew.times;
    if (!crew.err && ++crew.arrived == crew.count) {
        crew.arrived = 0;
        crew.times++;
    }
    if (crew.err || crew.times != times)
        pthread_cond_broadcast(&crew.changed);
    while (crew.times == times && !crew.err)
        pthread_cond_wait(&crew.changed, &crew.lock);
    err = crew.times == times ? crew.err : 0;
    pthread_mutex_unlock(&crew.lock);
    return err;
}

int crew_meet(void) { return crew.count > 1 ? meet(0) : 0; }

void crew_leave(int err)
{
    if (crew.count > 1)
        meet(err ? err : -EINTR);
}

static void add(struct outcome *sum, const struct outcome *one)
{
    sum->messages += one->messages;
    sum->bytes += one->bytes;
    sum->received += one->received;
    sum->bad += one->bad;
    sum->ns = one->ns > sum->ns ? one->ns : sum->ns;
}

int crew_sum(uint32_t index, int err, struct outcome *mine, struct outcome *theirs)
{
    if (crew.count == 1)
        return err;
    crew.mine[index] = *mine;
    crew.theirs[index] = *theirs;
    crew.ends[index] = err;
    /* After a signal the sum is of what was measured until then. */
    int left = meet(err == -EINTR ? 0 : err);
    if (left)
        return err ? err : left;
    memset(mine, 0, sizeof *mine);
    memset(theirs, 0, sizeof *theirs);
    for (uint32_t i = 0; i < crew.count; i++) {
        add(mine, &crew.mine[i]);
        add(theirs, &crew.theirs[i]);
        err = err ? err : crew.ends[i];
    }
    return err;
}

static void *run_member(void *arg)
{
    struct member *m = arg;
    m->err = m->work(m);
    return NULL;
}

int crew_run(struct member *members, uint32_t count)
{
    pthread_t threads[MAX_THREADS];
    uint32_t begun = 1;
    int err = 0;
    crew.count = count;
    crew.arrived = 0;
    crew.err = 0;
    for (; begun < count && !err; begun++)
        if ((err = -pthread_create(&threads[begun], NULL, run_member, &members[begun])) != 0)
            break;
    if (err) {
        gx_error("Take fewer threads.", "starting a thread: %s", gdrc_strerror(err));
        crew_leave(err);
    } else {
        run_member(&members[0]);
        err = members[0].err;
    }
    for (uint32_t i = 1; i < begun; i++) {
        pthread_join(threads[i], NULL);
        err = err ? err : members[i].err;
    }
    crew.count = 1;
    return err;
}
