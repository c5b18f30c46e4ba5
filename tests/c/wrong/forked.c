// SPDX-License-Identifier: MIT OR Apache-2.0
/* The process forks with registered memory, without ibv_fork_init. */
#include "wrong.h"

#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    begin(16, 64);
    pid_t child = fork(); /* WRONG */
    if (child == 0)
        exit(0);
    CHECK(waitpid(child, NULL, 0) == child);
    return end();
}
