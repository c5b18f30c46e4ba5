// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * unanswered PID: two threads open a device of the router with this process id while that does not
 * answer. Meanwhile the program lists its devices and forks. Prints "ok" when both threads have
 * their contexts, and the child one of its own.
 */
#include "device.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_device **list;

static void *opens(void *unused)
{
    (void)unused;
    return ibv_open_device(list[0]);
}

/* Whether the file has the text somewhere. */
static int has(const char *path, const char *text)
{
    char all[256] = "";
    int fd = open(path, O_RDONLY);
    if (fd >= 0) {
        CHECK(read(fd, all, sizeof all - 1) >= 0);
        close(fd);
    }
    return strstr(all, text) != NULL;
}

/* Whether a thread of the program is the one that opens a device. */
static int is_opening(void)
{
    int found = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        found += has(path, "gdrc-open");
    }
    closedir(tasks);
    return found;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    pid_t router = atoi(argv[1]);
    char stat[64];
    snprintf(stat, sizeof stat, "/proc/%d/stat", router);
    list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    CHECK(kill(router, SIGSTOP) == 0);
    while (!has(stat, ") T "))
        usleep(1000);

    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, opens, NULL) == 0);
    while (!is_opening())
        usleep(1000);
    // The router does not answer, and the program goes on.
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        // The threads that open a device are the parent's.
        CHECK(read(go[0], stat, 1) == 1);
        CHECK(opens(NULL));
        _exit(0);
    }
    struct ibv_device **again = ibv_get_device_list(NULL);
    CHECK(again && again[0] == list[0]);
    CHECK(is_opening() == 1);
    CHECK(kill(router, SIGCONT) == 0);
    CHECK(write(go[1], "x", 1) == 1);

    // Two contexts of one device.
    for (int i = 0; i < 2; i++) {
        void *context;
        CHECK(pthread_join(threads[i], &context) == 0 && context);
        CHECK(ibv_close_device(context) == 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("ok");
    return 0;
}
