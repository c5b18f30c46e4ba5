// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Files that are not whole yet. Each has a temporary name beside its own:
 *
 *   .NAME.partial-XXXXXX      of an ordinary copy; the letters are random
 *   .NAME.partial-to-resume   of a copy with --resume; kept when the copy does not end
 *
 * The file is locked for as long as a process writes it.
 */
#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#define PARTIAL ".partial-"
#define RESUMABLE "to-resume"
#define RANDOM_CHARS 6

/* A long name is cut, so that the temporary one does not exceed the limit. */
static void temporary_name(char out[256], const char *name, const char *suffix)
{
    snprintf(out, 256, ".%.200s" PARTIAL "%s", name, suffix);
}

/* A file of this user with a single link. */
static bool is_own_file(int fd, struct stat *st)
{
    return fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid() &&
           st->st_nlink == 1;
}

static int open_resumable(struct partial *p)
{
    struct stat st, there;
    temporary_name(p->temporary, p->name, RESUMABLE);
    p->fd = openat(p->parent_fd, p->temporary,
                   O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (p->fd < 0)
        return -errno;
    /*
     * The former holder of the lock may have renamed the file meanwhile: then it must not be
     * written any more.
     */
    if (!is_own_file(p->fd, &st) || flock(p->fd, LOCK_EX | LOCK_NB) < 0 ||
        fstatat(p->parent_fd, p->temporary, &there, AT_SYMLINK_NOFOLLOW) < 0 ||
        there.st_ino != st.st_ino || there.st_dev != st.st_dev) {
        close(p->fd);
        p->fd = -1;
        return -EBUSY;
    }
    p->resumable = true;
    p->old = st.st_size > 0;
    return 0;
}

int partial_open(struct partial *p, int parent_fd, const char *name, bool resumable)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    *p = (struct partial){ .fd = -1, .parent_fd = parent_fd };
    snprintf(p->name, sizeof p->name, "%s", name);
    /* If another copy writes the same file, this one begins its own. */
    if (resumable && open_resumable(p) == 0)
        return 0;
    for (int tries = 0; tries < 16; tries++) {
        uint8_t random[RANDOM_CHARS];
        char suffix[RANDOM_CHARS + 1];
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            return -EIO;
        for (int i = 0; i < RANDOM_CHARS; i++)
            suffix[i] = letters[random[i] & 31];
        suffix[RANDOM_CHARS] = 0;
        temporary_name(p->temporary, name, suffix);
        p->fd = openat(parent_fd, p->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       0600);
        if (p->fd >= 0) {
            /* Shows partial_sweep() that the file is being written. */
            flock(p->fd, LOCK_EX | LOCK_NB);
            return 0;
        }
        if (errno != EEXIST)
            return -errno;
    }
    return -EEXIST;
}

uint64_t partial_left(int parent_fd, const char *name)
{
    char temporary[256];
    struct stat st;
    temporary_name(temporary, name, RESUMABLE);
    int fd = openat(parent_fd, temporary, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return 0;
    bool good = is_own_file(fd, &st);
    close(fd);
    return good ? (uint64_t)st.st_size : 0;
}

int partial_accept(struct partial *p, uint64_t bytes)
{
    p->old = false;
    return ftruncate(p->fd, (off_t)bytes) < 0 ? -errno : 0;
}

int partial_finish(struct partial *p)
{
    if (renameat(p->parent_fd, p->temporary, p->parent_fd, p->name) < 0)
        return -errno;
    int fd = p->fd;
    p->fd = -1;
    /* Some file systems report a full disk only now. The rename is undone then. */
    if (close(fd) < 0) {
        int err = -errno;
        unlinkat(p->parent_fd, p->name, 0);
        return err;
    }
    return 0;
}

bool partial_drop(struct partial *p, bool keep, uint64_t bytes)
{
    struct stat st;
    if (p->fd < 0)
        return false;
    /* Bytes that were not verified stay as they were. */
    bool kept = keep && p->resumable && fstat(p->fd, &st) == 0 && (p->old || bytes > 0);
    if (kept && !p->old && (uint64_t)st.st_size != bytes && ftruncate(p->fd, (off_t)bytes) < 0)
        kept = false;
    if (!kept)
        unlinkat(p->parent_fd, p->temporary, 0);
    close(p->fd);
    p->fd = -1;
    return kept;
}

void partial_sweep(int root_fd)
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
        if (fstat(old, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
            flock(old, LOCK_EX | LOCK_NB) == 0 && unlinkat(fd, entry->d_name, 0) == 0)
            gx_note("removed %s, which a killed server left behind", entry->d_name);
        close(old);
    }
    closedir(dir);
}
