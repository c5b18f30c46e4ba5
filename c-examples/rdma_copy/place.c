// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The server's writer thread: takes records out of slots and puts files in place. What the client
 * sends is not trusted: a header is copied before it is checked, for the client may still write the
 * slot; paths are walked one component at a time without following links.
 */
#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTIAL ".partial-"
#define RANDOM_CHARS 6

struct writer {
    struct place *place;
    char path[COPY_PATH_MAX + 1];    /* of the open file or the folder at work */
    char parent[COPY_PATH_MAX + 1];  /* whose descriptor is parent_fd */
    int parent_fd;                   /* -1: none */
    int fd;                          /* the open file, or -1 */
    char temporary[256], name[256];
    uint64_t size, written, mtime_ns;
    uint32_t crc;
    uint16_t mode;
    bool done;
};

bool place_path_ok(const char *path, size_t length)
{
    size_t start = 0;
    if (length == 0 || length > COPY_PATH_MAX || memchr(path, 0, length))
        return false;
    for (size_t i = 0; i <= length; i++) {
        if (i < length && path[i] != '/')
            continue;
        size_t part = i - start;
        if (part == 0 || part > 255 || (part == 1 && path[start] == '.') || (part == 2 && path[start] == '.' && path[start + 1] == '.'))
            return false;
        start = i + 1;
    }
    return true;
}

static int fail(struct writer *w, int err, const char *doing)
{
    ring_finish(w->place->ring, err, "%s %s: %s", doing, w->path, err == -EPROTO ? "the client broke the protocol" : strerror(-err));
    return err;
}

/* Opens the folder that holds w->path and leaves it in parent_fd, the last component in `name`. */
static int open_parent(struct writer *w)
{
    const char *slash = strrchr(w->path, '/');
    size_t length = slash ? (size_t)(slash - w->path) : 0;
    /* place_path_ok() has seen to it that no component is longer than 255 bytes. */
    snprintf(w->name, sizeof w->name, "%.255s", slash ? slash + 1 : w->path);
    /* Files of one folder come one after the other. */
    if (w->parent_fd >= 0 && strlen(w->parent) == length && !memcmp(w->parent, w->path, length))
        return 0;
    if (w->parent_fd >= 0)
        close(w->parent_fd);
    w->parent_fd = -1;
    int fd = fcntl(w->place->root_fd, F_DUPFD_CLOEXEC, 0);
    for (size_t at = 0; fd >= 0 && at < length;) {
        char part[256];
        size_t n = strcspn(w->path + at, "/");
        memcpy(part, w->path + at, n);
        part[n] = 0;
        int next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int err = errno;
        close(fd);
        errno = err;
        fd = next;
        at += n + 1;
    }
    if (fd < 0)
        return -errno;
    memcpy(w->parent, w->path, length);
    w->parent[length] = 0;
    w->parent_fd = fd;
    return 0;
}

static int set_path(struct writer *w, const uint8_t *bytes, uint32_t length)
{
    char copy[COPY_PATH_MAX + 1];
    if (length > COPY_PATH_MAX)
        return fail(w, -EPROTO, "after");
    memcpy(copy, bytes, length);
    copy[length] = 0;
    if (!place_path_ok(copy, length)) {
        ring_finish(w->place->ring, -EPERM, "path refused: absolute, or with empty, '.' or '..' components");
        return -EPERM;
    }
    memcpy(w->path, copy, length + 1);
    int err = open_parent(w);
    return err ? fail(w, err, "opening the folder of") : 0;
}

static int open_temporary(struct writer *w)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    for (int tries = 0; tries < 16; tries++) {
        uint8_t random[RANDOM_CHARS];
        char suffix[RANDOM_CHARS + 1];
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            return -EIO;
        for (int i = 0; i < RANDOM_CHARS; i++)
            suffix[i] = letters[random[i] & 31];
        suffix[RANDOM_CHARS] = 0;
        /* A long name is cut, so that the temporary one is no longer than a name may be. */
        snprintf(w->temporary, sizeof w->temporary, ".%.200s" PARTIAL "%s", w->name, suffix);
        w->fd = openat(w->parent_fd, w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (w->fd >= 0) {
            /* Held for as long as we live: it tells place_sweep() that somebody still writes. */
            flock(w->fd, LOCK_EX | LOCK_NB);
            return 0;
        }
        if (errno != EEXIST)
            return -errno;
    }
    return -EEXIST;
}

static void drop_file(struct writer *w)
{
    if (w->fd < 0)
        return;
    close(w->fd);
    unlinkat(w->parent_fd, w->temporary, 0);
    w->fd = -1;
}

static int begin_file(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    struct stat st;
    int err = set_path(w, bytes, r->length);
    if (err)
        return err;
    /* rename() would say so only after all bytes have come. */
    if (fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return fail(w, -EISDIR, "writing");
    err = open_temporary(w);
    if (err)
        return fail(w, err, "creating a temporary file for");
    w->size = r->a;
    w->mtime_ns = r->b;
    w->mode = r->mode & 0777;
    w->written = 0;
    w->crc = 0;
    return 0;
}

static int append(struct writer *w, const uint8_t *bytes, uint32_t length)
{
    if (length > w->size - w->written)
        return fail(w, -EPROTO, "writing");
    while (length) {
        size_t piece = length < COPY_PIECE ? length : COPY_PIECE;
        ssize_t n = pwrite(w->fd, bytes, piece, (off_t)w->written);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(w, n < 0 ? -errno : -EIO, "writing");
        w->crc = gx_crc32c(w->crc, bytes, (size_t)n);
        bytes += n;
        length -= (uint32_t)n;
        w->written += (uint64_t)n;
    }
    return 0;
}

static struct timespec to_timespec(uint64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
}

static int end_file(struct writer *w, const struct record *r)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, to_timespec(w->mtime_ns) };
    struct stat st;
    if (w->written != w->size || fstat(w->fd, &st) < 0 || (uint64_t)st.st_size != w->size)
        return fail(w, -EPROTO, "the size is wrong:");
    if (w->crc != r->a) {
        ring_finish(w->place->ring, -EBADMSG, "%s was damaged on the way: CRC-32C %08x, the client says %08" PRIx64, w->path, w->crc, r->a);
        return -EBADMSG;
    }
    if (fchmod(w->fd, w->mode) < 0 || futimens(w->fd, times) < 0 || (w->place->sync && fsync(w->fd) < 0))
        return fail(w, -errno, "finishing");
    if (renameat(w->parent_fd, w->temporary, w->parent_fd, w->name) < 0)
        return fail(w, -errno, "renaming to");
    int fd = w->fd;
    w->fd = -1;
    /* Some file systems tell of a full disk only now. The name is taken back then. */
    if (close(fd) < 0) {
        int err = -errno;
        unlinkat(w->parent_fd, w->name, 0);
        return fail(w, err, "closing");
    }
    w->place->files++;
    w->place->bytes += w->size;
    return 0;
}

static int make_dir(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    struct stat st;
    int err = set_path(w, bytes, r->length);
    if (err)
        return err;
    /* Ours to write in until DIR_END gives it its own mode. */
    if (mkdirat(w->parent_fd, w->name, 0700) < 0) {
        err = -errno;
        if (err != -EEXIST || fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
            return fail(w, err, "creating folder");
        if ((st.st_mode & 0700) != 0700)
            fchmodat(w->parent_fd, w->name, 0700, 0);
    }
    return 0;
}

static int end_dir(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, to_timespec(r->b) };
    int err = set_path(w, bytes, r->length);
    if (err)
        return err;
    int fd = openat(w->parent_fd, w->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return fail(w, -errno, "finishing folder");
    if (futimens(fd, times) < 0 || fchmod(fd, r->mode & 0777) < 0)
        err = fail(w, -errno, "finishing folder");
    close(fd);
    return err;
}

static int handle_record(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    bool in_file = w->fd >= 0, wants_file = r->type == REC_DATA || r->type == REC_END;
    if (w->done || in_file != wants_file)
        return fail(w, -EPROTO, "after");
    switch (r->type) {
    case REC_DIR: return make_dir(w, r, bytes);
    case REC_DIR_END: return end_dir(w, r, bytes);
    case REC_FILE: return begin_file(w, r, bytes);
    case REC_DATA: return append(w, bytes, r->length);
    case REC_END: return end_file(w, r);
    case REC_DONE:
        w->done = true;
        return r->a == w->place->files && r->b == w->place->bytes ? 0 : fail(w, -EPROTO, "the counts are wrong after");
    default: return fail(w, -EPROTO, "after");
    }
}

static int handle_slot(struct writer *w, const uint8_t *slot, uint32_t used)
{
    for (uint32_t at = 0; at < used;) {
        uint8_t header[RECORD_BYTES];
        struct record r;
        if (used - at < RECORD_BYTES)
            return fail(w, -EPROTO, "after");
        memcpy(header, slot + at, RECORD_BYTES);
        record_get(header, &r);
        at += RECORD_BYTES;
        if (r.length > used - at)
            return fail(w, -EPROTO, "after");
        int err = handle_record(w, &r, slot + at);
        if (err)
            return err;
        at += r.length;
    }
    return 0;
}

void *place_main(void *arg)
{
    struct writer w = { .place = arg, .parent_fd = -1, .fd = -1, .path = "(start)" };
    struct ring *ring = w.place->ring;
    int err = 0;
    while (!err && !w.done && ring_wait_filled(ring)) {
        uint32_t n = atomic_load_explicit(&ring->consumed, memory_order_relaxed);
        err = handle_slot(&w, ring_slot(ring, n), ring->used[n % ring->depth]);
        if (!err) {
            atomic_store_explicit(&ring->consumed, n + 1, memory_order_release);
            ring_wake_engine(ring);
        }
    }
    drop_file(&w);
    if (w.parent_fd >= 0)
        close(w.parent_fd);
    if (!err)
        ring_finish(ring, w.done ? 0 : -ECANCELED, NULL);
    return NULL;
}

void place_sweep(int root_fd)
{
    int fd = openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const char *mark = strstr(entry->d_name, PARTIAL);
        struct stat st;
        if (entry->d_name[0] != '.' || !mark || strlen(mark) != strlen(PARTIAL) + RANDOM_CHARS)
            continue;
        int old = openat(fd, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (old < 0)
            continue;
        if (fstat(old, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && flock(old, LOCK_EX | LOCK_NB) == 0 &&
            unlinkat(fd, entry->d_name, 0) == 0)
            gx_note("removed %s, which a killed server left behind", entry->d_name);
        close(old);
    }
    closedir(dir);
}
