// SPDX-License-Identifier: MIT OR Apache-2.0
/* The description of a buffer and of the way to it, as a line of text. */
#include "gpu_direct_rdma_access.h"

#include "../common/gx.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define PREFIX "gda"
#define VERSION 2

int gda_format(const struct gda_description *description, char *out, size_t size)
{
    const struct gdrc_endpoint *e = &description->end;
    bool dc = e->qp_type == GDRC_QPT_DCT;
    char gid[33];
    for (int i = 0; i < 16; i++)
        snprintf(gid + 2 * i, 3, "%02x", e->gid[i]);
    int n = snprintf(out, size,
                     PREFIX "%d:%s:%" PRIx64 ":%" PRIx64 ":%x:%x:%" PRIx64 ":%s:%x:%x:%x", VERSION,
                     dc ? "dc" : "rc", e->addr, e->length, e->rkey, e->qpn,
                     dc ? description->dc_key : e->psn, gid, e->mtu, e->udp_port,
                     e->max_rd_atomic);
    return n > 0 && (size_t)n < size ? 0 : -ENOSPC;
}

/* The next number of the description, at most `max`; moves past the colon or to the end. */
static bool next_number(const char **at, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;
    unsigned digits = 0;
    for (;; (*at)++, digits++) {
        char c = **at;
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                                : 16;
        if (digit == 16)
            break;
        value = value << 4 | digit;
    }
    if (digits == 0 || digits > 16 || value > max || (**at != ':' && **at != 0))
        return false;
    *at += **at == ':';
    *out = value;
    return true;
}

int gda_parse(const char *text, struct gda_description *out)
{
    uint64_t version, addr, length, rkey, qpn, start, gid_half, mtu, port, rd;
    if (strncmp(text, PREFIX, strlen(PREFIX)))
        return -EPROTO;
    text += strlen(PREFIX);
    if (!next_number(&text, UINT64_MAX, &version))
        return -EPROTO;
    if (version != VERSION)
        return -EPROTONOSUPPORT;
    bool dc = !strncmp(text, "dc:", 3);
    if (!dc && strncmp(text, "rc:", 3))
        return -EPROTO;
    text += 3;
    struct gdrc_endpoint e;
    memset(&e, 0, sizeof e);
    if (!next_number(&text, UINT64_MAX, &addr) || !next_number(&text, UINT64_MAX, &length) ||
        !next_number(&text, UINT32_MAX, &rkey) || !next_number(&text, 0xffffff, &qpn) ||
        !next_number(&text, dc ? UINT64_MAX : 0xffffff, &start) ||
        strspn(text, "0123456789abcdef") != 32)
        return -EPROTO;
    for (int half = 0; half < 2; half++) {
        char digits[17];
        memcpy(digits, text + 16 * half, 16);
        digits[16] = 0;
        const char *at = digits;
        if (!next_number(&at, UINT64_MAX, &gid_half))
            return -EPROTO;
        gx_put64(e.gid + 8 * half, gid_half);
    }
    text += 32;
    if (*text++ != ':' || !next_number(&text, 5, &mtu) || !next_number(&text, 65535, &port) ||
        !next_number(&text, 255, &rd) || *text)
        return -EPROTO;
    e.struct_size = sizeof e;
    e.qpn = (uint32_t)qpn;
    e.psn = dc ? 0 : (uint32_t)start;
    e.mtu = (uint32_t)mtu;
    e.qp_type = dc ? GDRC_QPT_DCT : GDRC_QPT_RC;
    e.udp_port = (uint32_t)port;
    e.addr = addr;
    e.length = length;
    e.rkey = (uint32_t)rkey;
    e.max_rd_atomic = (uint32_t)rd;
    *out = (struct gda_description){ .end = e, .dc_key = dc ? start : 0 };
    return 0;
}
