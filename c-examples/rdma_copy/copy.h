// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * How rdma_copy_file moves files.
 *
 *   client   reader thread -> ring of slots -> engine thread
 *            (disk, CRC)                       (device, TCP)
 *                                                 |     ^
 *                                           WRITE+imm SEND+imm
 *                                                 v     |
 *   server   writer thread <- ring of slots <- engine thread
 *            (CRC, disk)                       (device, TCP)
 *
 * Slot i of the client's ring is written into slot i of the server's. The immediate says how many
 * bytes of it are used; the server's SENDs carry, as immediate, how many slots it has emptied. The
 * disk has a thread of its own on both sides, so that a slow disk never makes a side look dead to
 * the other.
 *
 * The server's ring is shared memory, so a client on the same host writes it by itself: a WRITE
 * without immediate, which the library executes inside the post, and a SEND that carries the
 * immediate. See one_by_one in sender.c.
 *
 * A slot is a sequence of records: a header of RECORD_BYTES (big-endian: type 2, mode 2, length 4,
 * a 8, b 8), then `length` bytes. Small files share a slot.
 *
 *   DIR      a folder                        bytes: path
 *   DIR_END  its mode and mtime              b: mtime in ns      bytes: path
 *   FILE     a file begins                   a: size, b: mtime   bytes: path
 *   RESUME   behind FILE: part may be there  a: bytes, b: their CRC-32C
 *   DATA     the next bytes of it            bytes: data
 *   HOLE     the next bytes of it are 0      a: how many
 *   END      it is whole                     a: CRC-32C, b: size
 *   DROP     it cannot be read to its end
 *   KEEP     a file that is there already    a: size, b: mtime   bytes: path
 *   OFFER    is this file there already?     a: size, b: mtime   bytes: CRC-32C 4, path
 *   OFFERED  no more of these
 *   DONE     nothing more comes              a: files, b: bytes  bytes: files kept 8
 *
 * With --update, --checksum or --resume the client walks its files twice: first it offers them all,
 * and the server answers on the side channel which of them it has, whole or in part; then it sends
 * what is missing. A part counts only when its checksum is that of the same bytes of the client's
 * file (RESUME), which the server answers as well.
 */
#ifndef COPY_H
#define COPY_H

#include "../common/gx.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#define COPY_PORT 18516
#define COPY_SIZE_MIN 4096u
#define COPY_SIZE_MAX (64u << 20)
#define COPY_DEPTH_MAX 256u
#define COPY_RING_MAX (1ull << 30)
#define COPY_PATH_MAX 1023u
/* Deepest nesting of folders. */
#define COPY_LEVELS_MAX 64u
/*
 * The disk is read and written in pieces of this size, which are still in the cache when the CRC is
 * computed.
 */
#define COPY_PIECE 131072u

#define RECORD_BYTES 24u
enum record_type {
    REC_DIR = 1,
    REC_DIR_END,
    REC_FILE,
    REC_RESUME,
    REC_DATA,
    REC_HOLE,
    REC_END,
    REC_DROP,
    REC_KEEP,
    REC_OFFER,
    REC_OFFERED,
    REC_DONE
};
/* Size of a file whose size is known only after reading it, as in /proc. */
#define COPY_SIZE_UNKNOWN UINT64_MAX
struct record {
    uint16_t type, mode;
    uint32_t length;
    uint64_t a, b;
};
void record_put(uint8_t at[RECORD_BYTES], const struct record *r);
void record_get(const uint8_t at[RECORD_BYTES], struct record *r);

/* Messages of the side channel. */
enum {
    COPY_MSG_HELLO = GX_MSG_PROGRAM, /* client: slot size 4, slots 4, bytes to come 8, flags 4 */
    COPY_MSG_TARGET,                 /* server: its folder's identity: host 16, device 8, inode 8 */
    COPY_MSG_ANSWERS,                /* server: answers of ANSWER_BYTES each, below */
    COPY_MSG_ALIVE,                  /* both: still comparing */
    COPY_MSG_STOP,                   /* client: a signal has stopped it */
    /* server, in answer to that: struct copy_end, and of the current file: bytes kept 8, path */
    COPY_MSG_STOPPED,
    COPY_MSG_RESULT, /* server: all files are in place: struct copy_end */
};
enum { COPY_UPDATE = 1, COPY_CHECKSUM = 2, COPY_RESUME = 4 }; /* flags of HELLO */

/* Files in place. On the wire: three numbers of 8 bytes. */
struct copy_end { uint64_t files, bytes, kept; };
#define END_BYTES 24u
void end_put(uint8_t at[END_BYTES], const struct copy_end *e);
void end_get(const uint8_t at[END_BYTES], struct copy_end *e);

/* Identity of a folder on a running system: equal on both sides only for the same folder. */
#define TARGET_BYTES 32u
/* From a folder's status. False if the system has no identity. */
bool target_put(uint8_t at[TARGET_BYTES], uint64_t device, uint64_t inode);

/*
 * An answer of the server. Answers identify an offer by a hash of its path, its size and its time.
 * On the wire: type 8, then the rest, 8 bytes each.
 */
enum answer_type {
    ANSWER_KEEP = 1, /* the server has that file */
    ANSWER_PART,     /* it has `offset` bytes that may be the first ones of the file */
    ANSWER_ALL,      /* all offers are answered */
    ANSWER_RESUMED,  /* to RESUME: `offset` bytes of it are right, or 0 */
};
struct answer { uint64_t type, hash, size, mtime, offset; };
#define ANSWER_BYTES 40u
#define ANSWERS_MAX 100u /* of one message */
void answer_put(uint8_t at[ANSWER_BYTES], const struct answer *a);
void answer_get(const uint8_t at[ANSWER_BYTES], struct answer *a);
uint64_t path_hash(const char *path);

/* Interval of the signs of life of a side that only reads its disk. */
#define COPY_ALIVE_NS 250000000u

/*
 * A ring of slots between two threads of one process, one of which is the engine's. Counters run
 * freely; slot n is at (n % depth) * size. The other thread sleeps on a condition, the engine's on
 * `wake_fd`.
 */
struct ring {
    uint8_t *base;
    uint32_t size, depth;
    uint32_t used[COPY_DEPTH_MAX];      /* bytes in each filled slot */
    _Atomic uint32_t produced, consumed;
    atomic_bool stop;                   /* engine to worker: end early */
    atomic_bool finished;               /* worker to engine: it is done, join it */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool sleeping;                      /* under `lock`: the worker waits for `change` */
    int wake_fd;                        /* eventfd, may be shared by several rings */
    int error;                          /* of the worker, valid once finished; its text: */
    char why[400];
};

int ring_init(struct ring *r, uint8_t *base, uint32_t size, uint32_t depth, int wake_fd);
void ring_destroy(struct ring *r);
static inline uint8_t *ring_slot(const struct ring *r, uint32_t n)
{
    return r->base + (size_t)(n % r->depth) * r->size;
}
/* Engine's side: publish, and wake the worker if it sleeps. */
void ring_set_produced(struct ring *r, uint32_t value);
void ring_set_consumed(struct ring *r, uint32_t value);
void ring_stop(struct ring *r);
/* Engine's side: something that the worker may wait for in ring_wait() has changed. */
void ring_wake_worker(struct ring *r);
/* Worker's side: waits until `ready` returns true; false if it has to stop. */
bool ring_wait(struct ring *r, bool (*ready)(const void *of), const void *of);
/* Worker's side: waits for a free or a filled slot; false if it has to stop. */
bool ring_wait_free(struct ring *r);
bool ring_wait_filled(struct ring *r);
/* Worker's side: notifies the engine of a change of produced or consumed. */
void ring_wake_engine(struct ring *r);
/* Worker's side: its end and result. `fmt` may be NULL. */
void ring_finish(struct ring *r, int error, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- extent.c: files as a series of data and holes ---- */
/*
 * Where the data at or behind `at` begins, and the hole behind it, neither beyond `end`. A file
 * system without holes has data only. Returns 0 or a negative errno; -EIO: the file has become
 * shorter than `end`.
 */
int extent_next(int fd, uint64_t at, uint64_t end, uint64_t *data, uint64_t *hole);
/*
 * CRC-32C of the first `length` bytes. `progress` grows by the bytes read; `stop` ends it with
 * -ECANCELED. -EIO: the file is shorter. Both may be NULL.
 */
int extent_crc(int fd, uint64_t length, uint32_t *crc, _Atomic uint64_t *progress,
               const atomic_bool *stop);

/* ---- known.c: the client's table of answers ---- */
struct known { struct answer *table; size_t capacity, count; };
int known_add(struct known *k, const struct answer *a);
/* The answer to this offer, or NULL. */
const struct answer *known_find(const struct known *k, uint64_t hash, uint64_t size,
                                uint64_t mtime);
void known_free(struct known *k);

/* ---- walk.c: the client's reader thread ---- */
struct walk {
    struct ring *ring;
    char **paths; /* arguments; NULL: refused before anything was sent */
    int count;
    unsigned flags;                    /* of HELLO */
    bool changing;                     /* files that change meanwhile are copied as they are read */
    bool has_target;
    uint8_t target[TARGET_BYTES];   /* the server's folder, which is not to be copied into itself */
    _Atomic(const char *) argument; /* the current one of `paths`; for the progress bar */
    /* Of the current walk; final once the ring is finished. */
    _Atomic uint64_t files, bytes, kept, skipped;
    _Atomic uint64_t resumed_bytes;    /* of `bytes`, those that the server had */
    _Atomic uint64_t stored; /* bytes on this disk, less than `bytes` where there are holes */
    _Atomic uint64_t
        failed; /* entries of all walks that could not be read or are refused; each was named */
    _Atomic uint64_t compared;         /* bytes read for a checksum: a sign of life */
    char name[COPY_PATH_MAX + 1];      /* current path, for messages of the reader thread */
    /* Set by the engine's thread for the reader, followed by ring_wake_worker(). */
    struct known known;                /* complete once `answered` */
    atomic_bool answered;
    atomic_bool resumed;
    uint64_t resumed_at;               /* valid once `resumed` */
};
/*
 * Counts files and bytes without reading any. Prints arguments that cannot be copied. -ENOENT: none
 * can.
 */
int walk_count(struct walk *w);
void *walk_main(void *walk);

/* ---- partial.c: files that are not whole yet ---- */
struct partial {
    int fd;                      /* -1: none */
    int parent_fd;               /* folder, not owned */
    bool resumable;              /* it is kept if the rest does not come */
    bool old; /* it may hold bytes of an earlier copy that are not verified yet */
    char temporary[256], name[256];
};
/* Opens a temporary file for `name` in the folder. */
int partial_open(struct partial *p, int parent_fd, const char *name, bool resumable);
/* Bytes of `name` that an earlier copy has left; 0: none. */
uint64_t partial_left(int parent_fd, const char *name);
/* Keeps the first `bytes` of an earlier copy, which have been verified. */
int partial_accept(struct partial *p, uint64_t bytes);
/* Renames it to its name. */
int partial_finish(struct partial *p);
/* Closes it. Returns whether its `bytes` are kept for another try. */
bool partial_drop(struct partial *p, bool keep, uint64_t bytes);
/* Removes temporary files of a killed server from the folder, except those for --resume. */
void partial_sweep(int root_fd);

/* ---- place.c: the server's writer thread ---- */
#define PLACE_ANSWERS 256u
struct place {
    struct ring *ring;
    int root_fd;                       /* folder below which files are put */
    bool sync;
    unsigned flags;                    /* of HELLO */
    struct copy_end end;               /* in place; valid once the ring is finished */
    /* The current file when it had to stop, if bytes of it are kept or were begun. */
    uint64_t part;
    char part_path[COPY_PATH_MAX + 1];
    _Atomic uint64_t compared;         /* bytes read for a checksum: a sign of life */
    /* Answers on their way to the engine's thread. Counters run freely. */
    struct answer answers[PLACE_ANSWERS];
    _Atomic uint32_t answers_made, answers_taken;
};
void *place_main(void *place);
/* True if a path may be used: relative, no empty component, no "." or "..". */
bool place_path_ok(const char *path, size_t length);

/* ---- the two sides ---- */
struct copy_options {
    const char *device, *host, *dir;
    uint64_t size, depth, port, timeout_s;
    unsigned flags; /* of HELLO */
    bool once, sync, quiet, changing;
};
int copy_send(const struct copy_options *o, char **paths, int count);
int copy_serve(const struct copy_options *o);

#endif
