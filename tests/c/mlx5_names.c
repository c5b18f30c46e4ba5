/*
 * Calls every function of a libmlx5.so.1 with zeroes, by the table of its names, and checks that
 * each refuses in its own way and none crashes. The program is linked to libibverbs, whichever that
 * is. Prints "ok" and the number of functions.
 *
 *   mlx5_names LIBRARY TABLE ERRNO       ERRNO: that of the functions which the drop-in has
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef intptr_t (*function)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t);

/* What the upper half of the register holds does not count where the result is an int. */
static int is_right(const char *home, intptr_t result, int of_drop_in)
{
    int refused = (int)result == EOPNOTSUPP && errno == EOPNOTSUPP;
    if (strcmp(home, "refuse") == 0)
        return refused;
    if (strcmp(home, "none") == 0)
        return result == 0 && errno == EOPNOTSUPP;
    if (strcmp(home, "minus") == 0)
        return result == -1 && errno == EOPNOTSUPP;
    if (strcmp(home, "negative") == 0)
        return (int)result == -EOPNOTSUPP;
    if (strcmp(home, "nothing") == 0)
        return 1;
    if (strcmp(home, "is_supported") == 0)
        return (result & 0xff) == 0;
    if (strcmp(home, "query_device") == 0)
        return (int)result == of_drop_in && errno == of_drop_in;
    if (strcmp(home, "qp_ex_from_ibv_qp_ex") == 0)
        return result == 0;
    return result == 0 && errno == of_drop_in;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    FILE *table = fopen(argv[2], "r");
    if (!library || !table) {
        fprintf(stderr, "%s\n", library ? argv[2] : dlerror());
        return 2;
    }
    int of_drop_in = strcmp(argv[3], "EINVAL") == 0 ? EINVAL : EOPNOTSUPP, n = 0, wrong = 0;
    char line[256], name[128], version[64], home[64];
    while (fgets(line, sizeof(line), table)) {
        if (line[0] == '#' || sscanf(line, "%127s %63s %63s", name, version, home) != 3)
            continue;
        function f = (function)dlvsym(library, name, version);
        if (!f) {
            fprintf(stderr, "%s\n", dlerror());
            wrong++;
            continue;
        }
        errno = 0;
        intptr_t result = f(0, 0, 0, 0, 0, 0);
        if (!is_right(home, result, of_drop_in)) {
            fprintf(stderr, "%s (%s): %ld, errno %d\n", name, home, (long)result, errno);
            wrong++;
        }
        n++;
    }
    if (list)
        ibv_free_device_list(list);
    printf("%s %d\n", wrong ? "wrong" : "ok", n);
    return wrong != 0;
}
