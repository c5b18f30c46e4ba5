// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * How rdma_copy_file moves files.
 *
 *   client                                                      server
 *   reader thread -> ring of slots -> engine thread  ==WRITE+imm==>  engine thread -> ring of slots -> writer thread
 *   (disk, CRC)                       (device, TCP)  <==SEND+imm===  (device, TCP)                    (CRC, disk)
 *
 * Slot i of the client's ring is written into slot i of the server's. The immediate says how many bytes of it are
 * used; the server's SENDs carry, as immediate, how many slots it has emptied. The disk has a thread of its own on
 * both sides, so that a slow disk never makes a side look dead to the other.
 *
 * The server's ring is shared memory, so a client on the same host writes it by itself: a WRITE without immediate, which
 * the library executes inside the post, and a SEND that carries the immediate. See one_by_one in sender.c.
 *
 * A slot is a sequence of records: a header of RECORD_BYTES (big-endian: type 2, mode 2, length 4,
 * a 8, b 8), then `length` bytes. Small files share a slot.
 *
 *   DIR      a folder                        bytes: path
 *   DIR_END  its mode and mtime              b: mtime in ns      bytes: path
 *   FILE     a file begins                   a: size, b: mtime   bytes: path
 *   DATA     the next bytes of it            bytes: data
 *   END      it is whole                     a: CRC-32C
 *   DONE     nothing more comes              a: files, b: bytes
 */
#ifndef COPY_H
#define COPY_H

#include "../common/gx.h"

#include <pthread.h>
#include <stdatomic.h>

#define COPY_PORT 18516
#define COPY_SIZE_MIN 4096u
#define COPY_SIZE_MAX (64u << 20)
#define COPY_DEPTH_MAX 256u
#define COPY_RING_MAX (1ull << 30)
#define COPY_PATH_MAX 1023u
/* Deepest nesting of folders. */
#define COPY_LEVELS_MAX 64u
/* The disk is read and written in pieces of this size: they are still in the cache when the CRC is taken. */
#define COPY_PIECE 131072u

#define RECORD_BYTES 24u
enum record_type { REC_DIR = 1, REC_DIR_END, REC_FILE, REC_DATA, REC_END, REC_DONE };
struct record {
    uint16_t type, mode;
    uint32_t length;
    uint64_t a, b;
};
void record_put(uint8_t at[RECORD_BYTES], const struct record *r);
void record_get(const uint8_t at[RECORD_BYTES], struct record *r);

/* Messages of the side channel. */
enum {
    COPY_MSG_HELLO = GX_MSG_PROGRAM, /* client: slot size 4, slots 4, bytes to come 8 */
    COPY_MSG_RESULT,                 /* server: everything is in place: files 8, bytes 8 */
};

/*
 * A ring of slots between two threads of one process, of which one is the engine's. Counters run
 * freely; slot n lies at (n % depth) * size. The other thread sleeps on a condition, the engine's on `wake_fd`.
 */
struct ring {
    uint8_t *base;
    uint32_t size, depth;
    uint32_t used[COPY_DEPTH_MAX];      /* bytes in each filled slot */
    _Atomic uint32_t produced, consumed;
    atomic_bool stop;                   /* engine to worker: give up */
    atomic_bool finished;               /* worker to engine: my last word is said, join me */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool sleeping;                      /* under `lock`: the worker waits for `change` */
    int wake_fd;                        /* eventfd, may be shared by several rings */
    int error;                          /* of the worker, valid once finished; its text: */
    char why[400];
};

int ring_init(struct ring *r, uint8_t *base, uint32_t size, uint32_t depth, int wake_fd);
void ring_destroy(struct ring *r);
static inline uint8_t *ring_slot(const struct ring *r, uint32_t n) { return r->base + (size_t)(n % r->depth) * r->size; }
/* Engine's side: publish, and wake the worker if it sleeps. */
void ring_set_produced(struct ring *r, uint32_t value);
void ring_set_consumed(struct ring *r, uint32_t value);
void ring_stop(struct ring *r);
/* Worker's side: wait for a free or a filled slot; false when it has to stop. */
bool ring_wait_free(struct ring *r);
bool ring_wait_filled(struct ring *r);
/* Worker's side: tell the engine about a change of produced or consumed. */
void ring_wake_engine(struct ring *r);
/* Worker's side: the last word. `fmt` may be NULL. */
void ring_finish(struct ring *r, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- walk.c: the client's reader thread ---- */
struct walk {
    struct ring *ring;
    char **paths;
    int count;
    _Atomic(const char *) argument; /* of those, the one that is at work; for the progress bar */
    _Atomic uint64_t files, bytes, skipped;
    char name[COPY_PATH_MAX + 1]; /* path at work, for messages of the reader thread */
};
/* Counts files and bytes without reading any. Complains. */
int walk_count(struct walk *w);
void *walk_main(void *walk);

/* ---- place.c: the server's writer thread ---- */
struct place {
    struct ring *ring;
    int root_fd;                  /* files land below */
    bool sync;
    uint64_t files, bytes;        /* in place; valid once the ring is finished without error */
};
void *place_main(void *place);
/* True if a path may be used: relative, no empty component, no "." or "..". */
bool place_path_ok(const char *path, size_t length);
/* Removes temporary files that a killed server left in the folder. */
void place_sweep(int root_fd);

/* ---- the two sides ---- */
struct copy_options {
    const char *device, *host, *dir;
    uint64_t size, depth, port, timeout_s;
    bool once, sync, quiet;
};
int copy_send(const struct copy_options *o, char **paths, int count);
int copy_serve(const struct copy_options *o);

#endif
