/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The rate of the driver's copies alone: a chunk out of the GPU into pinned memory and on into the
 * GPU, double-buffered, without gdrcore. It bounds every staged transfer within one machine.
 *
 * pipeline [MIB] prints "gpu NAME", "driver VERSION", "latency BYTES MICROSECONDS", "bandwidth
 * BYTES MB_PER_S"
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *object;

/* The driver's calls by name; the last argument of each line is the parameter list. */
#define CALLS(X)                                                                           \
    X(cuInit, (unsigned)) X(cuDriverGetVersion, (int *)) X(cuDeviceGet, (int *, int))      \
    X(cuDeviceGetName, (char *, int, int)) X(cuDevicePrimaryCtxRetain, (object *, int))    \
    X(cuCtxPushCurrent_v2, (object)) X(cuMemAlloc_v2, (uint64_t *, size_t))                \
    X(cuMemHostAlloc, (void **, size_t, unsigned)) X(cuStreamCreate, (object *, unsigned)) \
    X(cuEventCreate, (object *, unsigned)) X(cuEventRecord, (object, object))              \
    X(cuStreamWaitEvent, (object, object, unsigned)) X(cuStreamSynchronize, (object))      \
    X(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, object))                            \
    X(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, object))

#define DECLARE(name, parameters) static int(*name) parameters;
CALLS(DECLARE)

#define TRY(call)                                                \
    do {                                                         \
        int rc_ = (call);                                        \
        if (rc_)                                                 \
            fprintf(stderr, "%s: error %d\n", #call, rc_), exit(1); \
    } while (0)

#define CHUNK (128u << 10)

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = { 64, 4096, 65536, 1 << 20 };
    static uint64_t took[200];
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *pinned[2];
    uint64_t total = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1024) << 20, from, to;
    object context, out, in, filled[2], emptied[2];
    int device, version;
    char name[128] = "";
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 1;
#define LOAD(symbol, parameters)                                      \
    *(void **)(&symbol) = dlsym(library, #symbol);                    \
    if (!symbol)                                                      \
        return fprintf(stderr, "the driver has no %s\n", #symbol), 1;
    CALLS(LOAD)
    TRY(cuInit(0));
    TRY(cuDriverGetVersion(&version));
    TRY(cuDeviceGet(&device, 0));
    TRY(cuDeviceGetName(name, sizeof name - 1, device));
    TRY(cuDevicePrimaryCtxRetain(&context, device));
    TRY(cuCtxPushCurrent_v2(context));
    TRY(cuMemAlloc_v2(&from, 1 << 20));
    TRY(cuMemAlloc_v2(&to, 1 << 20));
    TRY(cuStreamCreate(&out, 1));
    TRY(cuStreamCreate(&in, 1));
    for (int i = 0; i < 2; i++) {
        TRY(cuMemHostAlloc(&pinned[i], CHUNK, 0));
        TRY(cuEventCreate(&filled[i], 2));
        TRY(cuEventCreate(&emptied[i], 2));
    }
    printf("gpu %s\ndriver %d.%d\n", name, version / 1000, version % 1000 / 10);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t size = sizes[s], chunk = size < CHUNK ? size : CHUNK;
        /* One message: out of the GPU, and then into it. */
        for (int i = 0; i < 200; i++) {
            uint64_t start = now_ns();
            for (size_t at = 0; at < size; at += chunk) {
                TRY(cuMemcpyDtoHAsync_v2(pinned[0], from + at, chunk, out));
                TRY(cuStreamSynchronize(out));
                TRY(cuMemcpyHtoDAsync_v2(to + at, pinned[0], chunk, in));
                TRY(cuStreamSynchronize(in));
            }
            took[i] = now_ns() - start;
        }
        qsort(took, 200, sizeof *took, by_value);
        printf("latency %zu %.2f\n", size, (double)took[100] / 1e3);
        /* Many messages: the next chunk leaves the GPU while this one enters it. */
        uint64_t count = total / chunk < 20000 ? total / chunk : 20000, start = now_ns();
        for (uint64_t i = 0; i < count; i++) {
            TRY(cuStreamWaitEvent(out, emptied[i % 2], 0));
            TRY(cuMemcpyDtoHAsync_v2(pinned[i % 2], from + i * chunk % size, chunk, out));
            TRY(cuEventRecord(filled[i % 2], out));
            TRY(cuStreamWaitEvent(in, filled[i % 2], 0));
            TRY(cuMemcpyHtoDAsync_v2(to + i * chunk % size, pinned[i % 2], chunk, in));
            TRY(cuEventRecord(emptied[i % 2], in));
        }
        TRY(cuStreamSynchronize(in));
        printf("bandwidth %zu %.0f\n", size,
               (double)(count * chunk) * 1e3 / (double)(now_ns() - start));
    }
    return 0;
}
