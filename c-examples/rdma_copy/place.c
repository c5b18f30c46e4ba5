// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The server's writer thread: takes records out of slots, puts files in place, and answers which
 * ones it has. The client is not trusted: a header is copied before it is checked, since the client
 * may still write the slot; paths are walked one component at a time without following links.
 */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

struct writer {
    struct place *place;
    char path[COPY_PATH_MAX + 1];    /* of the open file or the current folder */
    char parent[COPY_PATH_MAX + 1];  /* whose descriptor is parent_fd */
    int parent_fd;                   /* -1: none */
    char name[256];                  /* last component of `path` */
    struct partial file;             /* the open file */
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
        if (part == 0 || part > 255 || (part == 1 && path[start] == '.') ||
            (part == 2 && path[start] == '.' && path[start + 1] == '.'))
            return false;
        start = i + 1;
    }
    return true;
}

static int fail(struct writer *w, int err, const char *doing)
{
    ring_finish(w->place->ring, err, "%s %s: %s", doing, w->path,
                err == -EPROTO ? "the client broke the protocol" : strerror(-err));
    return err;
}

/* Opens the folder that holds w->path and leaves it in parent_fd, the last component in `name`. */
static int open_parent(struct writer *w)
{
    const char *slash = strrchr(w->path, '/');
    size_t length = slash ? (size_t)(slash - w->path) : 0;
    /* place_path_ok() ensures that no component is longer than 255 bytes. */
    snprintf(w->name, sizeof w->name, "%.255s", slash ? slash + 1 : w->path);
    /* Files of one folder follow each other. */
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

/*
 * Takes the path of a record and opens its folder. -EPERM, -EPROTO (printed): the path is invalid.
 * Otherwise as open_parent().
 */
static int take_path(struct writer *w, const uint8_t *bytes, uint32_t length)
{
    char copy[COPY_PATH_MAX + 1];
    if (length > COPY_PATH_MAX)
        return fail(w, -EPROTO, "after");
    memcpy(copy, bytes, length);
    copy[length] = 0;
    if (!place_path_ok(copy, length)) {
        ring_finish(w->place->ring, -EPERM,
                    "path refused: absolute, or with empty, '.' or '..' components");
        return -EPERM;
    }
    memcpy(w->path, copy, length + 1);
    return open_parent(w);
}

static int set_path(struct writer *w, const uint8_t *bytes, uint32_t length)
{
    int err = take_path(w, bytes, length);
    return err && !atomic_load(&w->place->ring->finished) ? fail(w, err, "opening the folder of")
                                                          : err;
}

static uint64_t mtime_of(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

/* Opens the file at w->path, if it is a file of this size. Returns the descriptor or -1. */
static int open_existing(struct writer *w, uint64_t size, struct stat *st)
{
    int fd =
        openat(w->parent_fd, w->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode) && (uint64_t)st->st_size == size)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool has_room_for_an_answer(const void *place)
{
    const struct place *p = place;
    return atomic_load_explicit(&p->answers_made, memory_order_relaxed) -
               atomic_load_explicit(&p->answers_taken, memory_order_acquire) <
           PLACE_ANSWERS;
}

/* Passes an answer to the engine's thread, which sends it. */
static int answer(struct writer *w, struct answer a)
{
    struct place *p = w->place;
    if (!ring_wait(p->ring, has_room_for_an_answer, p))
        return -ECANCELED;
    uint32_t n = atomic_load_explicit(&p->answers_made, memory_order_relaxed);
    p->answers[n % PLACE_ANSWERS] = a;
    atomic_store_explicit(&p->answers_made, n + 1, memory_order_release);
    ring_wake_engine(p->ring);
    return 0;
}

/* Whether the file equals the client's: the same bytes, or the same size and time. */
static bool is_same(struct writer *w, int fd, const struct stat *st, uint64_t mtime_ns,
                    uint32_t crc)
{
    uint32_t found;
    if (!(w->place->flags & COPY_CHECKSUM))
        return mtime_of(st) == mtime_ns;
    return extent_crc(fd, (uint64_t)st->st_size, &found, &w->place->compared,
                      &w->place->ring->stop) == 0 &&
           found == crc;
}

static int on_offer(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    struct answer a = { .size = r->a, .mtime = r->b };
    struct stat st;
    if (!w->place->flags || r->length < 4)
        return fail(w, -EPROTO, "after");
    uint32_t crc = gx_get32(bytes);
    int err = take_path(w, bytes + 4, r->length - 4);
    if (err) /* a folder that does not exist yet has no files */
        return atomic_load(&w->place->ring->finished) ? err : 0;
    int fd = open_existing(w, r->a, &st);
    if (fd >= 0) {
        if (is_same(w, fd, &st, r->b, crc))
            a.type = ANSWER_KEEP;
        close(fd);
    }
    if (!a.type && w->place->flags & COPY_RESUME &&
        (a.offset = partial_left(w->parent_fd, w->name)) > 0 && a.offset <= r->a)
        a.type = ANSWER_PART;
    if (!a.type)
        return 0;
    a.hash = path_hash(w->path);
    return answer(w, a);
}

static int begin_file(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    struct stat st;
    int err = set_path(w, bytes, r->length);
    if (err)
        return err;
    /* rename() would report it only after all bytes have come. */
    if (fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return fail(w, -EISDIR, "writing");
    err = partial_open(&w->file, w->parent_fd, w->name, w->place->flags & COPY_RESUME);
    if (err)
        return fail(w, err, "creating a temporary file for");
    w->size = r->a;
    w->mtime_ns = r->b;
    w->mode = r->mode & 0777;
    w->written = 0;
    w->crc = 0;
    return 0;
}

/* The bytes of an earlier copy count only if they equal the client's. */
static int resume(struct writer *w, const struct record *r)
{
    struct stat st;
    uint32_t crc;
    bool good =
        w->file.old && r->a > 0 && fstat(w->file.fd, &st) == 0 && (uint64_t)st.st_size >= r->a;
    if (!(w->place->flags & COPY_RESUME) || w->written || r->a > w->size || r->b > UINT32_MAX)
        return fail(w, -EPROTO, "after");
    if (good)
        good =
            extent_crc(w->file.fd, r->a, &crc, &w->place->compared, &w->place->ring->stop) == 0 &&
            crc == r->b;
    if (atomic_load(&w->place->ring->stop))
        return -ECANCELED;
    w->written = good ? r->a : 0;
    w->crc = good ? crc : 0;
    int err = partial_accept(&w->file, w->written);
    return err ? fail(w, err, "writing")
               : answer(w, (struct answer){ .type = ANSWER_RESUMED, .offset = w->written });
}

/*
 * Whether so many bytes may follow; bytes of an earlier copy that the client did not resume are
 * removed.
 */
static int expect(struct writer *w, uint64_t length)
{
    if (length > w->size - w->written)
        return fail(w, -EPROTO, "writing");
    int err = w->file.old ? partial_accept(&w->file, 0) : 0;
    return err ? fail(w, err, "writing") : 0;
}

static int skip_hole(struct writer *w, uint64_t length)
{
    int err = w->size == COPY_SIZE_UNKNOWN ? fail(w, -EPROTO, "writing") : expect(w, length);
    if (err)
        return err;
    w->written += length;
    w->crc = gx_crc32c_zeros(w->crc, length);
    return 0;
}

static int append(struct writer *w, const uint8_t *bytes, uint32_t length)
{
    int err = expect(w, length);
    if (err)
        return err;
    while (length) {
        size_t piece = length < COPY_PIECE ? length : COPY_PIECE;
        ssize_t n = pwrite(w->file.fd, bytes, piece, (off_t)w->written);
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
    return (struct timespec){
        .tv_sec = (time_t)(ns / 1000000000u),
        .tv_nsec = (long)(ns % 1000000000u),
    };
}

static int end_file(struct writer *w, const struct record *r)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, to_timespec(w->mtime_ns) };
    struct stat st;
    int fd = w->file.fd, err = expect(w, 0);
    if (err)
        return err;
    if (w->written != r->b || (w->size != COPY_SIZE_UNKNOWN && w->written != w->size))
        return fail(w, -EPROTO, "the size is wrong:");
    /* A hole at the end exists only by the file's size. */
    if (fstat(fd, &st) < 0 ||
        ((uint64_t)st.st_size < w->written && ftruncate(fd, (off_t)w->written) < 0))
        return fail(w, -errno, "finishing");
    if (w->crc != r->a) {
        ring_finish(w->place->ring, -EBADMSG,
                    "%s was damaged on the way: CRC-32C %08x, the client says %08" PRIx64, w->path,
                    w->crc, r->a);
        partial_drop(&w->file, false, 0);
        return -EBADMSG;
    }
    if (fchmod(fd, w->mode) < 0 || futimens(fd, times) < 0 || (w->place->sync && fsync(fd) < 0))
        return fail(w, -errno, "finishing");
    err = partial_finish(&w->file);
    if (err)
        return fail(w, err, "giving its name to");
    w->place->end.files++;
    w->place->end.bytes += w->written;
    return 0;
}

/* The client has found the file here unchanged. Its mode and time may still differ. */
static int keep_file(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, to_timespec(r->b) };
    struct stat st;
    int err = w->place->flags ? set_path(w, bytes, r->length) : fail(w, -EPROTO, "after");
    if (err)
        return err;
    int fd = open_existing(w, r->a, &st);
    if (fd < 0)
        return fail(w, -ESTALE, "somebody changed it meanwhile:");
    if (((st.st_mode & 0777) != (r->mode & 0777) && fchmod(fd, r->mode & 0777) < 0) ||
        (mtime_of(&st) != r->b && futimens(fd, times) < 0))
        err = fail(w, -errno, "finishing");
    close(fd);
    w->place->end.kept += !err;
    return err;
}

static int make_dir(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    struct stat st;
    int err = set_path(w, bytes, r->length);
    if (err)
        return err;
    /* Writable for us until DIR_END sets its own mode. */
    if (mkdirat(w->parent_fd, w->name, 0700) < 0) {
        err = -errno;
        if (err != -EEXIST || fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISDIR(st.st_mode))
            return fail(w, err, "creating folder");
        /* Another user's folder may still be writable: the first file in it will tell. */
        if ((st.st_mode & 0700) != 0700 && fchmodat(w->parent_fd, w->name, 0700, 0) < 0 &&
            errno != EPERM)
            return fail(w, -errno, "making folder writable");
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

static int end_all(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    const struct copy_end *e = &w->place->end;
    w->done = true;
    if (r->length != 8 || r->a != e->files || r->b != e->bytes || gx_get64(bytes) != e->kept)
        return fail(w, -EPROTO, "the counts are wrong after");
    return 0;
}

static int handle_record(struct writer *w, const struct record *r, const uint8_t *bytes)
{
    bool in_file = w->file.fd >= 0;
    if (w->done || in_file != (r->type == REC_RESUME || r->type == REC_DATA ||
                               r->type == REC_HOLE || r->type == REC_END || r->type == REC_DROP))
        return fail(w, -EPROTO, "after");
    switch (r->type) {
    case REC_DIR: return make_dir(w, r, bytes);
    case REC_DIR_END: return end_dir(w, r, bytes);
    case REC_FILE: return begin_file(w, r, bytes);
    case REC_RESUME: return resume(w, r);
    case REC_DATA: return append(w, bytes, r->length);
    case REC_HOLE: return skip_hole(w, r->a);
    case REC_END: return end_file(w, r);
    case REC_DROP: return partial_drop(&w->file, false, 0), 0;
    case REC_KEEP: return keep_file(w, r, bytes);
    case REC_OFFER: return on_offer(w, r, bytes);
    case REC_OFFERED: return answer(w, (struct answer){ .type = ANSWER_ALL });
    case REC_DONE: return end_all(w, r, bytes);
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
    struct writer w = { .place = arg, .parent_fd = -1, .file = { .fd = -1 }, .path = "(start)" };
    struct place *p = w.place;
    struct ring *ring = p->ring;
    int err = 0;
    while (!err && !w.done && ring_wait_filled(ring)) {
        uint32_t n = atomic_load_explicit(&ring->consumed, memory_order_relaxed);
        err = handle_slot(&w, ring_slot(ring, n), ring->used[n % ring->depth]);
        if (!err) {
            atomic_store_explicit(&ring->consumed, n + 1, memory_order_release);
            ring_wake_engine(ring);
        }
    }
    if (w.file.fd >= 0) {
        memcpy(p->part_path, w.path, sizeof p->part_path);
        p->part = partial_drop(&w.file, true, w.written) ? w.written : 0;
    }
    if (w.parent_fd >= 0)
        close(w.parent_fd);
    if (!atomic_load(&ring->finished))
        ring_finish(ring, w.done && !err ? 0 : -ECANCELED, NULL);
    return NULL;
}
