// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * rdma_copy_file: copies files and folders to another host by RDMA. Options; the work is in
 * sender.c and receiver.c.
 */
#include "copy.h"

#include <string.h>

static void usage(FILE *to)
{
    fprintf(to,
            "usage: rdma_copy_file [options]                       receive files into the current "
            "folder\n"
            "       rdma_copy_file [options] HOST FILE|FOLDER...   send them\n"
            "Copies files and folders by RDMA WRITE, checks size and CRC-32C of each from end to "
            "end.\n\n"
            "  -d, --device DEVICE     soft:ADDRESS[:PORT], an address of this machine, or a "
            "network interface\n"
            "                          (default: server: the first that is not loopback;\n"
            "                          client: the address from which the server is reached)\n"
            "  -p, --port PORT         TCP port of the server (default %d)\n"
            "  -t, --timeout SECONDS   give up when the other side has not moved for so long "
            "(default 60)\n"
            "  -q, --quiet             print errors only\n"
            "  -h, --help              this text\n"
            "  -V, --version           the version\n"
            "server:\n"
            "  -o, --dir FOLDER        receive into this folder\n"
            "  -1, --once              exit after one client, with its success or failure\n"
            "      --sync              have the disk confirm each file before it gets its name\n"
            "client:\n"
            "  -s, --size BYTES        size of a message, 4k to 64M (default 1M)\n"
            "  -n, --depth N           messages under way, 1 to %u (default 8)\n"
            "  -u, --update            leave out files that are there with the same size and time\n"
            "  -c, --checksum          leave out files that are there with the same bytes, "
            "whatever their time\n"
            "  -r, --resume            --update, and go on inside a file whose copy was "
            "interrupted; what is there of it\n"
            "                          counts only if its checksum is right. Interrupted, it keeps "
            "what has come.\n"
            "      --changing          copy files that change meanwhile as they are read; else "
            "they are left out\n\n"
            "Symbolic links, devices, pipes and sockets are neither followed nor copied. Holes "
            "stay holes. What cannot\n"
            "be read is named, the rest is copied, and the exit code is 1. A file arrives under a "
            "temporary name and\n"
            "gets its own when it is whole: whatever fails leaves no half file under that name.\n",
            COPY_PORT, COPY_DEPTH_MAX);
}

int main(int argc, char **argv)
{
    enum { SYNC = 256, CHANGING };
    static const struct option longs[] = {
        { "device", required_argument, NULL, 'd' },  { "port", required_argument, NULL, 'p' },
        { "timeout", required_argument, NULL, 't' }, { "quiet", no_argument, NULL, 'q' },
        { "dir", required_argument, NULL, 'o' },     { "once", no_argument, NULL, '1' },
        { "sync", no_argument, NULL, SYNC },         { "size", required_argument, NULL, 's' },
        { "depth", required_argument, NULL, 'n' },   { "update", no_argument, NULL, 'u' },
        { "checksum", no_argument, NULL, 'c' },      { "resume", no_argument, NULL, 'r' },
        { "changing", no_argument, NULL, CHANGING },
        GX_COMMON_OPTIONS,
    };
    struct copy_options o = {
        .dir = ".",
        .size = 1 << 20,
        .depth = 8,
        .port = COPY_PORT,
        .timeout_s = 60,
    };
    int bad = 0;
    gx_program = "rdma_copy_file";
    for (int c; (c = gx_getopt(argc, argv, "d:p:t:qo:1s:n:ucrhV", longs)) != -1;) {
        switch (c) {
        case 'd': o.device = optarg; break;
        case 'p': bad |= gx_parse_number(optarg, "--port", 1, 65535, &o.port); break;
        case 't': bad |= gx_parse_number(optarg, "--timeout", 1, 86400, &o.timeout_s); break;
        case 'q': o.quiet = true; break;
        case 'o': o.dir = optarg; break;
        case '1': o.once = true; break;
        case SYNC: o.sync = true; break;
        case CHANGING: o.changing = true; break;
        case 's':
            bad |= gx_parse_size(optarg, "--size", COPY_SIZE_MIN, COPY_SIZE_MAX, &o.size);
            break;
        case 'n': bad |= gx_parse_number(optarg, "--depth", 1, COPY_DEPTH_MAX, &o.depth); break;
        case 'u': o.flags |= COPY_UPDATE; break;
        case 'c': o.flags |= COPY_CHECKSUM; break;
        case 'r': o.flags |= COPY_UPDATE | COPY_RESUME; break;
        case 'h': usage(stdout); return GX_EXIT_OK;
        default: gx_note("try 'rdma_copy_file --help'"); return GX_EXIT_USAGE;
        }
    }
    if (!bad && o.size * o.depth > COPY_RING_MAX) {
        gx_error("Take a smaller --size or --depth.", "size times depth is more than 1 GiB");
        bad = 1;
    }
    if (!bad && optind + 1 == argc) {
        gx_error("usage: rdma_copy_file HOST FILE...; without arguments it is the server.",
                 "what shall be copied to %s?", argv[optind]);
        bad = 1;
    }
    if (!bad && optind == argc && (o.flags || o.changing)) {
        gx_error("They are the client's, who says what is to be copied.",
                 "--update, --checksum, --resume and --changing are not for a server");
        bad = 1;
    }
    if (bad)
        return GX_EXIT_USAGE;
    gx_catch_signals();
    int err;
    if (optind == argc) {
        err = copy_serve(&o);
    } else {
        o.host = argv[optind];
        err = copy_send(&o, argv + optind + 1, argc - optind - 1);
    }
    return gx_exit_code(err);
}
