// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The client's reader thread: walks files and folders and turns them into records in slots.
 * Symbolic links, devices, sockets and pipes are not copied; each is named once. Entries that
 * cannot be read are named and counted, and the rest is copied.
 */
#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/*
 * The times of some file systems are no finer, so that a file that was changed so shortly before it
 * is read may change again and keep its time.
 */
#define COARSE_NS 2000000000u

/* The purpose of a walk. */
enum purpose { COUNT, OFFER, SEND };

/* The destination of a walk's records. */
struct out {
    struct walk *walk;
    struct ring *ring;
    enum purpose purpose;
    uint32_t at;       /* bytes in the open slot; 0: no slot is open */
    uint8_t *slot;
};

/*
 * Functions here return 0 also if an entry could not be copied, after it was printed and counted.
 * Any other result ends the walk.
 */

/*
 * Prints that an entry is not copied; `err` may be 0. Arguments are printed before anything is
 * sent, entries below them when they would be sent.
 */
static int refuse(struct out *o, int err, const char *doing, const char *hint)
{
    if (err == -ECANCELED || err == -EINTR)
        return err;
    if (o->purpose == SEND) {
        gx_error(hint, "%s %s%s%s", doing, o->walk->name, err ? ": " : "",
                 err ? strerror(-err) : "");
        o->walk->failed++;
    }
    return 0;
}

static int unreadable(struct out *o, int err, const char *doing)
{
    return refuse(o, err, doing, "It is not copied; only what this user may read can be.");
}

static const char *kind_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFLNK: return "a symbolic link";
    case S_IFBLK: return "a block device";
    case S_IFCHR: return "a character device";
    case S_IFIFO: return "a pipe";
    case S_IFSOCK: return "a socket";
    default: return "no file and no folder";
    }
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
        o->slot =
            ring_slot(o->ring, atomic_load_explicit(&o->ring->produced, memory_order_relaxed));
    }
    return 0;
}

static int put(struct out *o, const struct record *r, const void *bytes)
{
    int err = need(o, RECORD_BYTES + r->length);
    if (err)
        return err;
    record_put(o->slot + o->at, r);
    if (r->length)
        memcpy(o->slot + o->at + RECORD_BYTES, bytes, r->length);
    o->at += RECORD_BYTES + r->length;
    return 0;
}

static uint64_t time_ns(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
}

static uint64_t mtime_ns(const struct stat *st) { return time_ns(&st->st_mtim); }

/* A file whose size differs from its contents: the kernel makes its bytes when it is read. */
static bool is_made_up(int fd, const struct stat *st)
{
    static const unsigned long kinds[] = {
        PROC_SUPER_MAGIC, SYSFS_MAGIC,        DEBUGFS_MAGIC,       TRACEFS_MAGIC,
        SECURITYFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, SELINUX_MAGIC,
        SMACK_MAGIC,      EFIVARFS_MAGIC,     PSTOREFS_MAGIC,      BPF_FS_MAGIC
    };
    struct statfs fs;
    char byte;
    if (st->st_blocks || fstatfs(fd, &fs) < 0)
        return false;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((unsigned long)fs.f_type == kinds[i])
            return true;
    /* File systems in user space have such files as well. */
    return st->st_size == 0 && pread(fd, &byte, 1, 0) > 0;
}

/* A file being sent. */
struct reading {
    int fd;
    bool made_up;      /* read to its end, whatever its size */
    bool sparse;       /* it may have holes */
    uint64_t size, at; /* bytes in all, and behind us */
    uint32_t crc;
};

/*
 * Reads up to the next hole, or the end, directly into slots, piece by piece. -EIO: the file became
 * shorter.
 */
static int send_data(struct out *o, struct reading *f, uint64_t end)
{
    while (f->at < end) {
        /* Not worth a header for a few bytes: begins the next slot instead. */
        int err = need(o, RECORD_BYTES + (end - f->at < 4096 ? (uint32_t)(end - f->at) : 2048));
        if (err)
            return err;
        uint32_t header = o->at, room = o->ring->size - o->at - RECORD_BYTES;
        uint32_t want = end - f->at < room ? (uint32_t)(end - f->at) : room, have = 0;
        uint8_t *data = o->slot + header + RECORD_BYTES;
        bool ended = false;
        while (have < want && !ended) {
            size_t piece = want - have < COPY_PIECE ? want - have : COPY_PIECE;
            ssize_t n = f->made_up ? read(f->fd, data + have, piece)
                                   : pread(f->fd, data + have, piece, (off_t)(f->at + have));
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                return -errno;
            if (n == 0 && !f->made_up)
                return -EIO;
            ended = n == 0;
            f->crc = gx_crc32c(f->crc, data + have, (size_t)n);
            have += (uint32_t)n;
            if (atomic_load_explicit(&o->ring->stop, memory_order_relaxed))
                return -ECANCELED;
        }
        if (have) {
            struct record r = { .type = REC_DATA, .length = have };
            record_put(o->slot + header, &r);
            o->at += RECORD_BYTES + have;
            f->at += have;
        }
        if (ended)
            return 0;
    }
    return 0;
}

static int send_bytes(struct out *o, struct reading *f)
{
    if (!f->sparse)
        return send_data(o, f, f->made_up ? UINT64_MAX : f->size);
    for (int err; f->at < f->size;) {
        uint64_t data, hole;
        if ((err = extent_next(f->fd, f->at, f->size, &data, &hole)))
            return err;
        struct record r = { .type = REC_HOLE, .a = data - f->at };
        if (r.a) {
            if ((err = put(o, &r, NULL)))
                return err;
            f->crc = gx_crc32c_zeros(f->crc, r.a);
            f->at = data;
        }
        if ((err = send_data(o, f, hole)))
            return err;
    }
    return 0;
}

static bool is_set(const void *flag) { return atomic_load((const atomic_bool *)flag); }

/*
 * The server has `bytes` that may be the first ones of this file: continues behind them if their
 * checksum is right.
 */
static int resume(struct out *o, struct reading *f, uint64_t bytes)
{
    struct record r = { .type = REC_RESUME, .a = bytes };
    uint32_t crc;
    int err = extent_crc(f->fd, bytes, &crc, &o->walk->compared, &o->ring->stop);
    if (err)
        return err;
    r.b = crc;
    atomic_store(&o->walk->resumed, false);
    if ((err = put(o, &r, NULL)))
        return err;
    /* The server must answer now, not when the slot is full. */
    close_slot(o);
    if (!ring_wait(o->ring, is_set, &o->walk->resumed))
        return -ECANCELED;
    if (o->walk->resumed_at == bytes) {
        f->at = bytes;
        f->crc = crc;
        o->walk->resumed_bytes += bytes;
    }
    return 0;
}

/*
 * Whether a file that was read has changed since `was`, before `began`: by its size and time; and
 * where these do not tell, because it was changed just before or has only another ctime, by its
 * bytes, which are read once more. Then both reads are what the file was between them. Negative:
 * an errno.
 */
static int has_changed(struct out *o, const struct reading *f, const struct stat *was,
                       uint64_t began)
{
    struct stat now;
    uint32_t crc;
    if (fstat(f->fd, &now) < 0)
        return -errno;
    if (now.st_size != was->st_size)
        return 1;
    /* One of no size is made as it is read (/proc), or has begun to grow. */
    if (f->made_up)
        return 0;
    if (mtime_ns(&now) != mtime_ns(was))
        return 1;
    bool touched = now.st_ctim.tv_sec != was->st_ctim.tv_sec ||
                   now.st_ctim.tv_nsec != was->st_ctim.tv_nsec;
    if (!touched && mtime_ns(was) + COARSE_NS < began)
        return 0;
    int err = extent_crc(f->fd, f->size, &crc, &o->walk->compared, &o->ring->stop);
    return err ? err : crc != f->crc;
}

static int send_file(struct out *o, int fd, const struct stat *st, const char *path)
{
    struct walk *w = o->walk;
    struct timespec began;
    clock_gettime(CLOCK_REALTIME, &began);
    struct reading f = { .fd = fd, .made_up = is_made_up(fd, st), .size = (uint64_t)st->st_size };
    struct record r = {
        .type = REC_FILE,
        .mode = (uint16_t)(st->st_mode & 0777),
        .length = (uint32_t)strlen(path),
        .a = f.size,
        .b = mtime_ns(st),
    };
    const struct answer *known = known_find(&w->known, path_hash(path), f.size, r.b);
    f.sparse = !f.made_up && (uint64_t)st->st_blocks * 512 < f.size;
    if (known && known->type == ANSWER_KEEP) {
        r.type = REC_KEEP;
        w->kept++;
        return put(o, &r, path);
    }
    if (f.made_up)
        r.a = COPY_SIZE_UNKNOWN;
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    int err = put(o, &r, path);
    if (err)
        return err;
    if (known && known->type == ANSWER_PART && !f.made_up && known->offset <= f.size)
        err = resume(o, &f, known->offset);
    if (!err)
        err = send_bytes(o, &f);
    int changed = !err ? has_changed(o, &f, st, time_ns(&began)) : 0;
    if (changed < 0)
        err = changed;
    if (err == -ECANCELED)
        return err;
    if (changed == 1 && w->changing)
        gx_note("it changed while it was copied, and arrives as it was read: %s", path);
    if (err || (changed == 1 && !w->changing)) {
        if (err)
            unreadable(o, err,
                       err == -EIO && !f.made_up ? "it became shorter, or its disk fails:"
                                                 : "reading");
        else
            refuse(o, 0, "not copied, because it changed meanwhile:",
                   "Copy it again, or as it is read with --changing.");
        r = (struct record){ .type = REC_DROP };
        return put(o, &r, NULL);
    }
    r = (struct record){ .type = REC_END, .a = f.crc, .b = f.at };
    err = put(o, &r, NULL);
    w->files++;
    w->bytes += f.at;
    return err;
}

/* Asks the server whether it has the file. */
static int offer_file(struct out *o, int fd, const struct stat *st, const char *path)
{
    struct walk *w = o->walk;
    uint8_t body[4 + COPY_PATH_MAX];
    uint32_t crc = 0;
    size_t length = strlen(path);
    if (is_made_up(fd, st))
        return 0;
    if (w->flags & COPY_CHECKSUM) {
        int err = extent_crc(fd, (uint64_t)st->st_size, &crc, &w->compared, &o->ring->stop);
        if (err) /* the walk that sends reports it */
            return err == -ECANCELED ? err : 0;
    }
    gx_put32(body, crc);
    memcpy(body + 4, path, length);
    struct record r = {
        .type = REC_OFFER,
        .length = (uint32_t)(4 + length),
        .a = (uint64_t)st->st_size,
        .b = mtime_ns(st),
    };
    w->files++;
    return put(o, &r, body);
}

static int walk_file(struct out *o, int fd, const struct stat *st, const char *path)
{
    uint64_t size = (uint64_t)st->st_size, stored = (uint64_t)st->st_blocks * 512;
    if (o->purpose == SEND)
        return send_file(o, fd, st, path);
    if (o->purpose == OFFER)
        return offer_file(o, fd, st, path);
    o->walk->files++;
    o->walk->bytes += size;
    o->walk->stored += size < stored ? size : stored;
    return gx_stopping ? -EINTR : 0;
}

/* Whether an entry is the server's target folder, which must not be copied into itself. */
static bool is_target(const struct walk *w, const struct stat *st)
{
    uint8_t own[TARGET_BYTES];
    return w->has_target && target_put(own, st->st_dev, st->st_ino) &&
           !memcmp(own, w->target, sizeof own);
}

static int walk_entry(struct out *o, int parent, const char *name, const char *path,
                      unsigned level);

static int walk_dir(struct out *o, int fd, const struct stat *st, const char *path, unsigned level)
{
    struct record r = {
        .type = REC_DIR,
        .mode = (uint16_t)(st->st_mode & 0777),
        .length = (uint32_t)strlen(path),
    };
    bool refused = is_target(o->walk, st);
    DIR *dir = !refused && level < COPY_LEVELS_MAX ? fdopendir(fd) : NULL;
    if (!dir) {
        int err = refused || level >= COPY_LEVELS_MAX ? -ELOOP : -errno;
        close(fd);
        return refused ? refuse(o, 0, "not copied: the server puts files into",
                                "A folder is not copied into itself.")
                       : unreadable(o, err, "opening folder");
    }
    int err = o->purpose == SEND ? put(o, &r, path) : 0;
    while (!err) {
        char below[COPY_PATH_MAX + 1];
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            snprintf(o->walk->name, sizeof o->walk->name, "%s", path);
            err = errno ? unreadable(o, -errno, "reading folder") : 0;
            break;
        }
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= (int)sizeof below) {
            snprintf(o->walk->name, sizeof o->walk->name, "%s", path);
            err = unreadable(o, -ENAMETOOLONG, "a path below");
        } else {
            err = walk_entry(o, dirfd(dir), entry->d_name, below, level + 1);
        }
    }
    closedir(dir);
    r.type = REC_DIR_END;
    r.b = mtime_ns(st);
    return err || o->purpose != SEND ? err : put(o, &r, path);
}

static int walk_entry(struct out *o, int parent, const char *name, const char *path, unsigned level)
{
    struct stat st;
    snprintf(o->walk->name, sizeof o->walk->name, "%s", path);
    /* Opening a device may already have an effect. */
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return unreadable(o, -errno, "looking at");
    int fd = -1;
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) {
        /*
         * It may have been replaced. NOFOLLOW: a link is not its target. NONBLOCK: a pipe must not
         * block us.
         */
        fd = openat(parent, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
            return unreadable(o, -errno, S_ISDIR(st.st_mode) ? "opening folder" : "opening");
        if (fstat(fd, &st) < 0) {
            int err = unreadable(o, -errno, "looking at");
            close(fd);
            return err;
        }
    }
    if (fd >= 0 && S_ISDIR(st.st_mode))
        return walk_dir(o, fd, &st, path, level);
    int err = 0;
    if (fd >= 0 && S_ISREG(st.st_mode)) {
        err = walk_file(o, fd, &st, path);
    } else {
        o->walk->skipped++;
        if (o->purpose == SEND)
            gx_note("not copied: %s is %s", path, kind_of(st.st_mode));
    }
    if (fd >= 0)
        close(fd);
    return err;
}

/*
 * The name under which an argument arrives: the last component of its real path, so that "." and
 * "../x/" have one.
 */
static int walk_argument(struct out *o, const char *argument)
{
    struct stat st;
    atomic_store(&o->walk->argument, argument);
    snprintf(o->walk->name, sizeof o->walk->name, "%s", argument);
    char *whole = realpath(argument, NULL);
    if (!whole)
        return unreadable(o, -errno, "opening");
    char *slash = strrchr(whole, '/');
    const char *name = slash + 1;
    int err = 0;
    /* An entry of the server's folder would be replaced while it is read. */
    char first = *name;
    *slash = 0;
    bool refused = first && stat(slash == whole ? "/" : whole, &st) == 0 && is_target(o->walk, &st);
    *slash = '/';
    if (refused)
        err = refuse(o, 0, "not copied: the server puts files beside",
                     "It would be copied onto itself.");
    else
        err = walk_entry(o, AT_FDCWD, argument, name, 0);
    free(whole);
    return err;
}

static int walk_all(struct out *o)
{
    struct walk *w = o->walk;
    int err = 0;
    w->files = w->bytes = w->skipped = w->stored = w->kept = 0;
    for (int i = 0; i < w->count && !err; i++)
        if (w->paths[i])
            err = walk_argument(o, w->paths[i]);
    return err;
}

/* Checks whether an argument can be copied at all; if not, it is printed and left out. */
static bool check_argument(struct walk *w, int i)
{
    const char *argument = w->paths[i], *wrong = NULL;
    struct stat st;
    char *whole = NULL;
    if (lstat(argument, &st) < 0 || (!S_ISLNK(st.st_mode) && !(whole = realpath(argument, NULL))))
        wrong = strerror(errno);
    else if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        wrong = kind_of(st.st_mode);
    else if (!strcmp(whole, "/"))
        wrong = "it has no name of its own";
    else if (access(argument, S_ISDIR(st.st_mode) ? R_OK | X_OK : R_OK) < 0)
        wrong = strerror(errno);
    free(whole);
    if (wrong) {
        gx_error(w->count > 1 ? "It is left out."
                              : "Files and folders are copied, and only what this user may read.",
                 "cannot copy %s: %s", argument, wrong);
        w->paths[i] = NULL;
        w->failed++;
    }
    return !wrong;
}

int walk_count(struct walk *w)
{
    struct out o = { .walk = w };
    int good = 0;
    for (int i = 0; i < w->count; i++)
        good += check_argument(w, i);
    return good ? walk_all(&o) : -ENOENT;
}

/* Offers all files and waits for the server's answers. */
static int offer_all(struct out *o)
{
    struct record r = { .type = REC_OFFERED };
    o->purpose = OFFER;
    int err = walk_all(o);
    if (!err)
        err = put(o, &r, NULL);
    if (!err)
        close_slot(o);
    return err ? err : ring_wait(o->ring, is_set, &o->walk->answered) ? 0 : -ECANCELED;
}

void *walk_main(void *arg)
{
    struct walk *w = arg;
    struct out o = { .walk = w, .ring = w->ring };
    uint8_t kept[8];
    int err = w->flags ? offer_all(&o) : 0;
    o.purpose = SEND;
    if (!err)
        err = walk_all(&o);
    struct record r = { .type = REC_DONE, .length = sizeof kept, .a = w->files, .b = w->bytes };
    gx_put64(kept, w->kept);
    if (!err)
        err = put(&o, &r, kept);
    if (!err)
        close_slot(&o);
    ring_finish(w->ring, err, NULL);
    return NULL;
}
