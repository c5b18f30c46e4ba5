// SPDX-License-Identifier: MIT OR Apache-2.0
/* A preloaded library whose system calls allocate; a counter of allocations must find them. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>

static void waste(void)
{
    void *volatile memory = malloc(100);
    free(memory);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "sendmsg");
    waste();
    return real(fd, message, flags);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    static int (*real)(int, struct mmsghdr *, unsigned, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "sendmmsg");
    waste();
    return real(fd, messages, count, flags);
}
