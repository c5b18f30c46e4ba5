// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What lies in the router's buffer: a note. 128 bytes of header, then the payload. Client and peer
 * both write notes, by CPU and by RDMA; router, client and peer all read and check them.
 *
 * Header, big-endian: magic 4, version 4, length 8, CRC-32C of the payload 4, is-a-file 4,
 * writer 40 (text), name 64 (text of a file's name).
 */
#ifndef NOTE_H
#define NOTE_H

#include "../common/gx.h"

#define NOTE_HEADER_BYTES 128u
#define FF_PORT 19875
#define FF_SOCKET "/tmp/gdrcore-router.sock"
#define FF_SIZE_MAX (2ull << 30)
#define FF_KIND_AT 8u
#define FF_TOKEN_AT 40u

/* Messages of the side channels. */
enum {
    /* router to client and peer: your turn */
    FF_MSG_HELLO = GX_MSG_PROGRAM,
    /* router to client: size 8, kind of memory 32 (text), token, and the descriptor, if any */
    FF_MSG_BUFFER,
    /* client or peer to router: the buffer holds my note; router to client: the peer's */
    FF_MSG_WRITTEN,
    /* peer to router: I have read and checked the note */
    FF_MSG_READ,
};

struct note {
    uint64_t length;
    uint32_t crc;
    bool is_file;
    char writer[41], name[65];
};

/* Writes a note from text, or from a file if `path` is not NULL. Complains on error. */
int note_write(struct gx_mem *mem, const char *writer, const char *text, const char *path,
               struct note *out);
/*
 * Reads the header and checks it against the size of the buffer: -EPROTO for anything that is no
 * note.
 */
int note_parse(const uint8_t header[NOTE_HEADER_BYTES], size_t capacity, struct note *out);
/* Parses, and checks the payload's CRC (-EBADMSG). Complains on error. */
int note_check(const struct gx_mem *mem, struct note *out);
/* Prints the note (the beginning of it, if it is long), indented. */
void note_show(const struct gx_mem *mem, const struct note *note);
/* Saves the payload to a file. Complains on error. */
int note_save(const struct gx_mem *mem, const struct note *note, const char *path);

#endif
