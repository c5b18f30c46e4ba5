// SPDX-License-Identifier: MIT OR Apache-2.0
/* Options of both programs of gpu_direct, and the pattern that checks the data. */
#include "task.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define CHUNK_WORDS 8192u

int gd_parse_transport(const char *text, enum gda_transport *out)
{
    if (strcmp(text, "dc") && strcmp(text, "rc")) {
        gx_error("dc or rc, the same on both sides.", "--transport: '%s' is not known", text);
        return -EINVAL;
    }
    *out = strcmp(text, "dc") ? GDA_RC : GDA_DC;
    return 0;
}

static uint64_t word_at(uint64_t index, uint64_t seed)
{
    /* Two rounds of multiply and fold: neighbours and seeds become independent. */
    uint64_t v = (index + seed * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
    v ^= v >> 32;
    return v * 0xd6e8feb86659fd93u;
}

static uint64_t make_chunk(uint64_t words[CHUNK_WORDS], uint64_t offset, uint64_t length,
                           uint64_t seed)
{
    uint64_t bytes = length - offset < sizeof(uint64_t) * CHUNK_WORDS
                         ? length - offset
                         : sizeof(uint64_t) * CHUNK_WORDS;
    for (uint64_t i = 0; i * 8 < bytes; i++)
        words[i] = word_at(offset / 8 + i, seed);
    return bytes;
}

int gd_fill(struct gx_mem *mem, uint64_t length, uint64_t seed)
{
    uint64_t words[CHUNK_WORDS];
    for (uint64_t at = 0, n; at < length; at += n) {
        n = make_chunk(words, at, length, seed);
        int err = gx_mem_write(mem, at, words, n);
        if (err)
            return err;
    }
    return 0;
}

int gd_verify(const struct gx_mem *mem, uint64_t length, uint64_t seed, uint64_t *where)
{
    uint64_t words[CHUNK_WORDS], found[CHUNK_WORDS];
    for (uint64_t at = 0, n; at < length; at += n) {
        n = make_chunk(words, at, length, seed);
        int err = gx_mem_read(mem, at, found, n);
        if (err)
            return err;
        if (!memcmp(words, found, n))
            continue;
        const uint8_t *a = (const uint8_t *)words, *b = (const uint8_t *)found;
        uint64_t i = 0;
        while (a[i] == b[i])
            i++;
        *where = at + i;
        return -EBADMSG;
    }
    return 0;
}

void gd_print_counters(gdrc_context *ctx)
{
    uint64_t values[128];
    uint32_t count = gdrc_counter_count();
    if (count > 128)
        count = 128;
    memset(values, 0, sizeof values);
    if (gdrc_counters(ctx, values, count) < 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (values[i])
            printf("    %-28s %" PRIu64 "\n", gdrc_counter_name(i), values[i]);
}
