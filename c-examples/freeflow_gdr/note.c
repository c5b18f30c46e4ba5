// SPDX-License-Identifier: MIT OR Apache-2.0
#include "note.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x4e4f5445u /* "NOTE" */
#define CHUNK 65536u

static void put_header(uint8_t header[NOTE_HEADER_BYTES], const struct note *note)
{
    memset(header, 0, NOTE_HEADER_BYTES);
    gx_put32(header, MAGIC);
    gx_put32(header + 4, 1);
    gx_put64(header + 8, note->length);
    gx_put32(header + 16, note->crc);
    gx_put32(header + 20, note->is_file);
    memcpy(header + 24, note->writer, strnlen(note->writer, 40));
    memcpy(header + 64, note->name, strnlen(note->name, 64));
}

int note_parse(const uint8_t header[NOTE_HEADER_BYTES], size_t capacity, struct note *out)
{
    memset(out, 0, sizeof *out);
    if (gx_get32(header) != MAGIC || gx_get32(header + 4) != 1 || capacity < NOTE_HEADER_BYTES)
        return -EPROTO;
    out->length = gx_get64(header + 8);
    out->crc = gx_get32(header + 16);
    out->is_file = gx_get32(header + 20) != 0;
    memcpy(out->writer, header + 24, 40);
    memcpy(out->name, header + 64, 64);
    return out->length <= capacity - NOTE_HEADER_BYTES ? 0 : -EPROTO;
}

static int too_big(const struct gx_mem *mem)
{
    gx_error("Start the router with a larger --size.",
             "the message does not fit into the buffer of %zu bytes", mem->length);
    return -EFBIG;
}

static int write_file(struct gx_mem *mem, const char *path, struct note *note)
{
    uint8_t chunk[CHUNK];
    int fd = open(path, O_RDONLY | O_CLOEXEC), err = 0;
    if (fd < 0) {
        err = -errno;
        gx_error("Give a readable file with -f.", "cannot open %s: %s", path, strerror(-err));
        return err;
    }
    for (ssize_t n; !err && (n = read(fd, chunk, sizeof chunk)) != 0;) {
        if (n < 0) {
            err = errno == EINTR ? 0 : -errno;
            if (err)
                gx_error(NULL, "cannot read %s: %s", path, strerror(-err));
            continue;
        }
        note->crc = gx_crc32c(note->crc, chunk, (size_t)n);
        err = gx_mem_write(mem, NOTE_HEADER_BYTES + note->length, chunk, (size_t)n);
        note->length += (uint64_t)n;
        if (err == -ERANGE)
            too_big(mem);
    }
    close(fd);
    const char *slash = strrchr(path, '/');
    snprintf(note->name, sizeof note->name, "%s", slash ? slash + 1 : path);
    note->is_file = true;
    return err;
}

int note_write(struct gx_mem *mem, const char *writer, const char *text, const char *path,
               struct note *out)
{
    uint8_t header[NOTE_HEADER_BYTES];
    int err;
    memset(out, 0, sizeof *out);
    snprintf(out->writer, sizeof out->writer, "%s", writer);
    if (path) {
        err = write_file(mem, path, out);
    } else {
        out->length = strlen(text);
        out->crc = gx_crc32c(0, text, out->length);
        err = gx_mem_write(mem, NOTE_HEADER_BYTES, text, out->length);
        if (err == -ERANGE)
            too_big(mem);
    }
    if (err)
        return err;
    /* The header last: it says that the payload is whole. */
    put_header(header, out);
    return gx_mem_write(mem, 0, header, sizeof header);
}

int note_check(const struct gx_mem *mem, struct note *out)
{
    uint8_t header[NOTE_HEADER_BYTES], chunk[CHUNK];
    /* A copy is checked and used: whoever shares the buffer may change it while we look. */
    int err = gx_mem_read(mem, 0, header, sizeof header);
    if (!err)
        err = note_parse(header, mem->length, out);
    if (err) {
        gx_error("Who writes must use note_write() of this version.", "the buffer holds no note");
        return err;
    }
    uint32_t crc = 0;
    for (uint64_t at = 0; at < out->length; at += CHUNK) {
        size_t n = out->length - at < CHUNK ? (size_t)(out->length - at) : CHUNK;
        err = gx_mem_read(mem, NOTE_HEADER_BYTES + at, chunk, n);
        if (err)
            return err;
        crc = gx_crc32c(crc, chunk, n);
    }
    if (crc != out->crc) {
        gx_error("The bytes changed on the way, or somebody wrote while we read.",
                 "the note is damaged: CRC-32C %08x, it should be %08x", crc, out->crc);
        return -EBADMSG;
    }
    return 0;
}

void note_show(const struct gx_mem *mem, const struct note *note)
{
    char bytes[72];
    size_t n = note->length < sizeof bytes ? (size_t)note->length : sizeof bytes;
    printf("        from ");
    gx_print_bytes(stdout, note->writer, strlen(note->writer), 40);
    if (note->is_file) {
        printf(", file ");
        gx_print_bytes(stdout, note->name, strlen(note->name), 64);
    }
    printf(", %llu bytes, CRC-32C %08x: ", (unsigned long long)note->length, note->crc);
    if (gx_mem_read(mem, NOTE_HEADER_BYTES, bytes, n) == 0) {
        putchar('"');
        gx_print_bytes(stdout, bytes, n, n);
        printf(note->length > n ? "...\"" : "\"");
    }
    putchar('\n');
    fflush(stdout);
}

int note_save(const struct gx_mem *mem, const struct note *note, const char *path)
{
    uint8_t chunk[CHUNK];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), err = fd < 0 ? -errno : 0;
    for (uint64_t at = 0; !err && at < note->length;) {
        size_t n = note->length - at < CHUNK ? (size_t)(note->length - at) : CHUNK;
        err = gx_mem_read(mem, NOTE_HEADER_BYTES + at, chunk, n);
        ssize_t put = err ? 0 : write(fd, chunk, n);
        if (put < 0 && errno != EINTR)
            err = -errno;
        at += put > 0 ? (uint64_t)put : 0;
    }
    if (fd >= 0 && close(fd) < 0 && !err)
        err = -errno;
    if (err)
        gx_error("Choose a writable place with room.", "cannot write %s: %s", path, strerror(-err));
    return err;
}
