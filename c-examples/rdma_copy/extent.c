// SPDX-License-Identifier: MIT OR Apache-2.0
/* Reads files as a series of data and holes. */
#include "copy.h"

#include <errno.h>
#include <unistd.h>

int extent_next(int fd, uint64_t at, uint64_t end, uint64_t *data, uint64_t *hole)
{
    off_t found = lseek(fd, (off_t)at, SEEK_DATA);
    *data = at;
    *hole = end;
    if (found < 0 && errno == ENXIO) {
        *data = end; /* nothing but a hole up to the end of the file */
        return lseek(fd, 0, SEEK_END) < (off_t)end ? -EIO : 0;
    }
    if (found < 0)
        return errno == EINVAL || errno == EOPNOTSUPP ? 0 : -errno;
    /* The file may have been truncated meanwhile: nothing here leaves [at, end]. */
    *data = (uint64_t)found < end ? (uint64_t)found : end;
    found = lseek(fd, (off_t)*data, SEEK_HOLE);
    if (found >= 0 && (uint64_t)found > *data && (uint64_t)found < end)
        *hole = (uint64_t)found;
    return 0;
}

int extent_crc(int fd, uint64_t length, uint32_t *crc, _Atomic uint64_t *progress,
               const atomic_bool *stop)
{
    uint8_t piece[COPY_PIECE];
    uint64_t data = 0, hole = 0;
    *crc = 0;
    for (uint64_t at = 0; at < length;) {
        if (stop && atomic_load_explicit(stop, memory_order_relaxed))
            return -ECANCELED;
        if (at == hole) {
            int err = extent_next(fd, at, length, &data, &hole);
            if (err)
                return err;
            *crc = gx_crc32c_zeros(*crc, data - at);
            at = data;
            continue;
        }
        ssize_t n =
            pread(fd, piece, hole - at < sizeof piece ? hole - at : sizeof piece, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        *crc = gx_crc32c(*crc, piece, (size_t)n);
        at += (uint64_t)n;
        if (progress)
            atomic_fetch_add_explicit(progress, (uint64_t)n, memory_order_relaxed);
    }
    return 0;
}
