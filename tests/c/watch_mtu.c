// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * watch_mtu DEVICE PEER: prints the path MTU that an open device offers, and that of the path to
 * PEER, whenever one of them changes.
 */
#include <arpa/inet.h>
#include <gdrcore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    gdrc_context *ctx;
    struct gdrc_device_attr attr = { .struct_size = sizeof attr };
    struct gdrc_ah_attr to;
    int active = 0, path = 0;
    memset(&to, 0, sizeof to);
    to.dgid[10] = to.dgid[11] = 0xff;
    if (argc != 3 || (inet_pton(AF_INET, argv[2], to.dgid + 12) != 1 &&
                      inet_pton(AF_INET6, argv[2], to.dgid) != 1))
        return 2;
    if (gdrc_open(argv[1], NULL, &ctx))
        return 1;
    for (;; usleep(10000)) {
        int now = gdrc_path_mtu(ctx, &to);
        if (gdrc_device_query(ctx, &attr) || now < 0)
            return 1;
        if ((int)attr.active_mtu != active || now != path)
            printf("link %u, path %u\n", 128u << attr.active_mtu, 128u << now);
        fflush(stdout);
        active = (int)attr.active_mtu;
        path = now;
    }
}
