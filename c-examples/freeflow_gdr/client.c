// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * client: gets the router's buffer, in host or GPU memory, over a Unix socket, writes a message or
 * a file into it, and shows what the peer writes in answer. It opens no device and no network
 * socket.
 */
#include "note.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void usage(FILE *to)
{
    fprintf(
        to,
        "usage: client [options] [MESSAGE]\n"
        "Writes a message or a file into the router's buffer and shows what the peer answers.\n\n"
        "  -s, --socket PATH       the router's Unix socket (default %s)\n"
        "  -m, --message TEXT      what to write (or as the argument)\n"
        "  -f, --file FILE         write this file instead\n"
        "  -o, --output FILE       save the peer's answer\n"
        "  -w, --wait SECONDS      wait so long for the peer's answer (default 60; 0: do not "
        "wait)\n"
        "  -h, --help              this text\n"
        "  -V, --version           the version\n",
        FF_SOCKET);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "socket", required_argument, NULL, 's' }, { "message", required_argument, NULL, 'm' },
        { "file", required_argument, NULL, 'f' },   { "output", required_argument, NULL, 'o' },
        { "wait", required_argument, NULL, 'w' },   GX_COMMON_OPTIONS,
    };
    const char *path = FF_SOCKET, *file = NULL, *output = NULL,
               *text = "Hello from the client, through memory that it shares with the router.";
    uint64_t wait_s = 60;
    gx_program = "client";
    for (int c; (c = gx_getopt(argc, argv, "s:m:f:o:w:hV", longs)) != -1;) {
        switch (c) {
        case 's': path = optarg; break;
        case 'm': text = optarg; break;
        case 'f': file = optarg; break;
        case 'o': output = optarg; break;
        case 'w':
            if (gx_parse_number(optarg, "--wait", 0, 86400, &wait_s))
                return GX_EXIT_USAGE;
            break;
        case 'h': usage(stdout); return GX_EXIT_OK;
        default: gx_note("try 'client --help'"); return GX_EXIT_USAGE;
        }
    }
    if (optind < argc)
        text = argv[optind++];
    if (optind < argc) {
        gx_error("Put a message of several words in quotes.", "unexpected argument '%s'",
                 argv[optind]);
        return GX_EXIT_USAGE;
    }
    gx_catch_signals();

    struct gx_conn router = { .fd = -1, .passed_fd = -1 };
    struct gx_mem mem = { .fd = -1 };
    struct note note;
    uint8_t body[GX_BODY_MAX];
    char writer[41];
    int err = gx_unix_connect(&router, path, GX_TIMEOUT_MS);
    if (err)
        goto out;
    gx_step("connected to the router at %s", path);

    err = gx_conn_recv(&router, FF_MSG_BUFFER, body, sizeof body - 1, GX_TIMEOUT_MS, "buffer");
    if (err < 0)
        goto out;
    body[err] = 0;
    if (err < (int)FF_TOKEN_AT || !memchr(body + FF_KIND_AT, 0, FF_TOKEN_AT - FF_KIND_AT)) {
        gx_error("Router and client must be of the same version.",
                 "the router handed over no buffer");
        err = -EPROTO;
        goto out;
    }
    int fd = router.passed_fd;
    router.passed_fd = -1;
    err = gx_mem_import(&mem, (const char *)body + FF_KIND_AT, fd, body + FF_TOKEN_AT,
                        (size_t)err - FF_TOKEN_AT, (size_t)gx_get64(body));
    if (err)
        goto out;
    gx_step("mapped the router's buffer: %zu bytes of %s memory", mem.length, mem.kind);

    snprintf(writer, sizeof writer, "client (pid %d)", (int)getpid());
    err = note_write(&mem, writer, text, file, &note);
    if (err) {
        gx_conn_send_error(&router, "the client could not write its message");
        goto out;
    }
    gx_step("wrote:");
    note_show(&mem, &note);

    err = gx_conn_send(&router, FF_MSG_WRITTEN, NULL, 0, -1, "the signal");
    if (err)
        goto out;
    gx_step("signalled the router");
    if (wait_s == 0)
        goto out;

    gx_step("waiting for the peer's answer");
    err = gx_conn_recv(&router, FF_MSG_WRITTEN, NULL, 0, (int)wait_s * 1000, "word of the peer");
    if (err >= 0)
        err = note_check(&mem, &note);
    if (err)
        goto out;
    gx_step("the peer has written, by RDMA, into this %s:",
            mem.gpu ? "GPU's memory" : "process' memory");
    note_show(&mem, &note);
    if (output)
        err = note_save(&mem, &note, output);
    gx_conn_send(&router, GX_MSG_DONE, NULL, 0, -1, NULL);
out:
    gx_mem_free(&mem);
    gx_conn_close(&router);
    return gx_exit_code(err);
}
