// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The client's reader thread: walks files and folders and turns them into records in slots. Symbolic
 * links, devices, sockets and pipes are not copied; each is named once.
 */
#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the walker writes into: NULL ring means counting only. */
struct out {
    struct walk *walk;
    struct ring *ring;
    uint32_t at;       /* bytes in the open slot; 0: no slot is open */
    uint8_t *slot;
};

/* Error texts are for the user as they are; -ECANCELED means that the engine told us to stop. */
static int fail(struct out *o, int err, const char *doing)
{
    if (o->ring)
        ring_finish(o->ring, err, "%s %s: %s", doing, o->walk->name, strerror(-err));
    else
        gx_error("Only what this user may read can be copied.", "%s %s: %s", doing, o->walk->name, strerror(-err));
    return err;
}

static void close_slot(struct out *o)
{
    if (!o->at)
        return;
    uint32_t n = atomic_load_explicit(&o->ring->produced, memory_order_relaxed);
    o->ring->used[n % o->ring->depth] = o->at;
    o->at = 0;
    atomic_store_explicit(&o->ring->produced, n + 1, memory_order_release);
    ring_wake_engine(o->ring);
}

/* Room for `bytes` in the open slot, opening the next one if need be. */
static int need(struct out *o, uint32_t bytes)
{
    if (o->at && o->ring->size - o->at < bytes)
        close_slot(o);
    if (!o->at) {
        if (!ring_wait_free(o->ring))
            return -ECANCELED;
        o->slot = ring_slot(o->ring, atomic_load_explicit(&o->ring->produced, memory_order_relaxed));
    }
    return 0;
}

static int put(struct out *o, const struct record *r, const void *bytes)
{
    if (!o->ring)
        return 0;
    int err = need(o, RECORD_BYTES + r->length);
    if (err)
        return err;
    record_put(o->slot + o->at, r);
    if (r->length)
        memcpy(o->slot + o->at + RECORD_BYTES, bytes, r->length);
    o->at += RECORD_BYTES + r->length;
    return 0;
}

static uint64_t mtime_ns(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

/* Reads the file straight into slots, piece by piece. */
static int send_bytes(struct out *o, int fd, uint64_t size, uint32_t *crc)
{
    for (uint64_t offset = 0; offset < size;) {
        /* A header for a handful of bytes is not worth it: begin the next slot instead. */
        int err = need(o, RECORD_BYTES + (size - offset < 4096 ? (uint32_t)(size - offset) : 2048));
        if (err)
            return err;
        uint32_t header = o->at, room = o->ring->size - o->at - RECORD_BYTES;
        uint32_t want = size - offset < room ? (uint32_t)(size - offset) : room, have = 0;
        uint8_t *data = o->slot + header + RECORD_BYTES;
        while (have < want) {
            size_t piece = want - have < COPY_PIECE ? want - have : COPY_PIECE;
            ssize_t n = pread(fd, data + have, piece, (off_t)(offset + have));
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                return fail(o, -errno, "reading");
            if (n == 0)
                return fail(o, -EIO, "it became shorter while it was copied:");
            *crc = gx_crc32c(*crc, data + have, (size_t)n);
            have += (uint32_t)n;
            if (atomic_load_explicit(&o->ring->stop, memory_order_relaxed))
                return -ECANCELED;
        }
        struct record r = { .type = REC_DATA, .length = have };
        record_put(o->slot + header, &r);
        o->at += RECORD_BYTES + have;
        offset += have;
    }
    return 0;
}

static int walk_file(struct out *o, int fd, const struct stat *st, const char *path)
{
    uint32_t crc = 0;
    uint64_t size = (uint64_t)st->st_size;
    if (o->ring) {
        struct record r = { .type = REC_FILE, .mode = (uint16_t)(st->st_mode & 0777), .length = (uint32_t)strlen(path), .a = size, .b = mtime_ns(st) };
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        int err = put(o, &r, path);
        if (!err)
            err = send_bytes(o, fd, size, &crc);
        r = (struct record){ .type = REC_END, .a = crc };
        if (!err)
            err = put(o, &r, NULL);
        if (err)
            return err;
    }
    o->walk->files++;
    o->walk->bytes += size;
    return 0;
}

static int walk_entry(struct out *o, int parent, const char *name, const char *path, unsigned level);

static int walk_dir(struct out *o, int fd, const struct stat *st, const char *path, unsigned level)
{
    struct record r = { .type = REC_DIR, .mode = (uint16_t)(st->st_mode & 0777), .length = (uint32_t)strlen(path) };
    DIR *dir = level < COPY_LEVELS_MAX ? fdopendir(fd) : NULL;
    if (!dir) {
        int err = level < COPY_LEVELS_MAX ? -errno : -ELOOP;
        close(fd);
        return fail(o, err, "opening folder");
    }
    int err = put(o, &r, path);
    while (!err) {
        char below[COPY_PATH_MAX + 1];
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            err = errno ? fail(o, -errno, "reading folder") : 0;
            break;
        }
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= (int)sizeof below)
            err = fail(o, -ENAMETOOLONG, "a path below");
        else
            err = walk_entry(o, dirfd(dir), entry->d_name, below, level + 1);
    }
    closedir(dir);
    r.type = REC_DIR_END;
    r.b = mtime_ns(st);
    return err ? err : put(o, &r, path);
}

static int walk_entry(struct out *o, int parent, const char *name, const char *path, unsigned level)
{
    struct stat st;
    snprintf(o->walk->name, sizeof o->walk->name, "%s", path);
    /* NOFOLLOW: a link is not its target. NONBLOCK: a pipe must not hold us. */
    int fd = openat(parent, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno != ELOOP && errno != ENXIO)
        return fail(o, -errno, "opening");
    if (fd >= 0 && fstat(fd, &st) < 0) {
        int err = fail(o, -errno, "looking at");
        close(fd);
        return err;
    }
    if (fd >= 0 && S_ISDIR(st.st_mode))
        return walk_dir(o, fd, &st, path, level);
    int err = 0;
    if (fd >= 0 && S_ISREG(st.st_mode)) {
        err = walk_file(o, fd, &st, path);
    } else {
        o->walk->skipped++;
        if (!o->ring)
            gx_note("not copied: %s is no file and no folder (a symbolic link, a device, a socket or a pipe)", path);
    }
    if (fd >= 0)
        close(fd);
    return err;
}

/* The name under which an argument arrives: the last component of what it is, so that "." and "../x/" have one. */
static int walk_argument(struct out *o, const char *argument)
{
    struct stat st;
    atomic_store(&o->walk->argument, argument);
    snprintf(o->walk->name, sizeof o->walk->name, "%s", argument);
    if (lstat(argument, &st) < 0)
        return fail(o, -errno, "opening");
    if (S_ISLNK(st.st_mode))
        return fail(o, -ELOOP, "symbolic links are not followed:");
    char *whole = realpath(argument, NULL);
    if (!whole)
        return fail(o, -errno, "opening");
    const char *name = strrchr(whole, '/') + 1;
    int err = *name && strlen(name) <= 255 ? walk_entry(o, AT_FDCWD, argument, name, 0) : fail(o, -EINVAL, "it has no name of its own:");
    free(whole);
    return err;
}

static int walk_all(struct out *o)
{
    int err = 0;
    o->walk->files = o->walk->bytes = o->walk->skipped = 0;
    for (int i = 0; i < o->walk->count && !err; i++)
        err = walk_argument(o, o->walk->paths[i]);
    return err;
}

int walk_count(struct walk *w)
{
    struct out o = { .walk = w };
    return walk_all(&o);
}

void *walk_main(void *arg)
{
    struct walk *w = arg;
    struct out o = { .walk = w, .ring = w->ring };
    int err = walk_all(&o);
    struct record r = { .type = REC_DONE, .a = w->files, .b = w->bytes };
    if (!err)
        err = put(&o, &r, NULL);
    if (!err)
        close_slot(&o);
    if (!atomic_load(&w->ring->finished))
        ring_finish(w->ring, err, NULL);
    return NULL;
}
