/* The first calls of a program built against an installed gdrcore, and the reasons of refusals. */
#include <errno.h>
#include <gdrcore.h>
#include <stdio.h>
#include <string.h>

#define CHECK(cond)                                             \
    do {                                                        \
        if (!(cond)) {                                          \
            fprintf(stderr, "use.c:%d: %s\n", __LINE__, #cond); \
            return 1;                                           \
        }                                                       \
    } while (0)

int main(void) {
    char why[512];
    size_t need = 0;
    gdrc_context *ctx = NULL;
    gdrc_config config;
    gdrc_leaks leaks;
    gdrc_pd pd;

    CHECK(gdrc_version_number() == GDRC_VERSION);
    memset(&config, 0, sizeof config);
    CHECK(gdrc_context_size("loopback", &config, &need) == -EINVAL); /* struct_size is not set */
    config.struct_size = sizeof config;
    CHECK(gdrc_context_size("loopback", &config, &need) == 0 && need > 0);
    CHECK(gdrc_open("no such device", NULL, &ctx) == -EINVAL && ctx == NULL);
    CHECK(gdrc_error_detail(why, sizeof why) > 0 && strstr(why, "soft:") != NULL);

    CHECK(gdrc_open("loopback", NULL, &ctx) == 0);
    CHECK(gdrc_error_detail(why, sizeof why) == 0);
    CHECK(gdrc_pd_alloc(ctx, &pd) == 0);
    memset(&leaks, 0, sizeof leaks);
    leaks.struct_size = sizeof leaks;
    CHECK(gdrc_close(ctx, &leaks) == 1 && leaks.pd == 1);
    CHECK(gdrc_close(ctx, NULL) == -EINVAL);
    printf("gdrcore %s: %zu bytes for a context\n", gdrc_version(), need);
    return 0;
}
