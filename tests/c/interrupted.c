// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * interrupted [exit|fork]: makes calls without end, while a timer's signal comes every 100
 * microseconds. The handler makes a call, with "fork" forks at every twentieth signal, and calls
 * exit at the 2,000th.
 */
#include "device.h"

#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int signals;
static int forks;

static void handler(int sig)
{
    (void)sig;
    ibv_fork_init();
    signals++;
    if (forks && signals % 20 == 0) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    if (signals == 2000)
        exit(0);
}

int main(int argc, char **argv)
{
    forks = argc > 1 && !strcmp(argv[1], "fork");
    struct itimerval each = {{0, 100}, {0, 100}};
    signal(SIGALRM, handler);
    CHECK(setitimer(ITIMER_REAL, &each, NULL) == 0);
    for (;;)
        CHECK(ibv_fork_init() == 0);
}
