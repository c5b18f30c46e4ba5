// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * lossy.so: preloaded, it drops every GDRC_LOSSY-th datagram that the process receives (with GRO a
 * datagram is a whole burst). It needs no privilege and no queue discipline. Without the variable
 * it drops nothing.
 *
 * Prints one line at exit, to the file GDRC_LOSSY_REPORT (appended) or to stderr:
 *   lossy: PROGRAM: N of M datagrams lost
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char *program_invocation_short_name;

static unsigned long every, came, lost;

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("GDRC_LOSSY");
    every = text ? strtoul(text, NULL, 10) : 0;
}

/* Whether this datagram is to be lost. */
static int lose(void)
{
    unsigned long n = __atomic_add_fetch(&came, 1, __ATOMIC_RELAXED);
    if (every == 0 || n % every != 0)
        return 0;
    __atomic_add_fetch(&lost, 1, __ATOMIC_RELAXED);
    return 1;
}

static int is_datagram(int fd, int flags)
{
    int type = 0, saved = errno;
    socklen_t len = sizeof type;
    int got = !(flags & MSG_ERRQUEUE) && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
              type == SOCK_DGRAM;
    errno = saved;
    return got;
}

/* A dropped datagram arrives with no bytes, which receivers of packets ignore. */
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t n = syscall(SYS_recvmsg, fd, msg, flags);
    return n > 0 && is_datagram(fd, flags) && lose() ? 0 : n;
}

int recvmmsg(int fd, struct mmsghdr *msgs, unsigned int count, int flags, struct timespec *timeout)
{
    int n = (int)syscall(SYS_recvmmsg, fd, msgs, count, flags, timeout);
    if (n > 0 && is_datagram(fd, flags))
        for (int i = 0; i < n; i++)
            if (lose())
                msgs[i].msg_len = 0;
    return n;
}

__attribute__((destructor)) static void report(void)
{
    char line[256];
    const char *path = getenv("GDRC_LOSSY_REPORT");
    int n = snprintf(line, sizeof line, "lossy: %s: %lu of %lu datagrams lost\n",
                     program_invocation_short_name, lost, came);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : STDERR_FILENO;
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        fprintf(stderr, "%s", line);
    if (path && fd >= 0)
        close(fd);
}
