// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * interrupted [exit|fork]: makes calls without end, while a timer's signal comes every 100
 * microseconds. The handler makes a call, with "fork" forks at every twentieth signal, and calls
 * exit at the 2,000th. A child goes on where the parent was interrupted, and ends after ten calls.
 */
#include "device.h"

#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int signals;
static int forks;
static volatile int is_child;

static void handler(int sig)
{
    (void)sig;
    ibv_fork_init();
    signals++;
    if (forks && signals % 20 == 0) {
        pid_t child = fork();
        if (child == 0) {
            is_child = 1;
            return;
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            _exit(1);
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
    for (int left = 10;;) {
        CHECK(ibv_fork_init() == 0);
        if (is_child && left-- == 0)
            _exit(0);
    }
}
