/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The fake driver's initialisation, devices, contexts, deliberate failures and counters. */
#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEVICES_MAX 8
#define STACK_MAX 8
#define FAILURES_MAX 32

struct failure {
    char call[40];
    int code;
    unsigned after, times;
    bool counted;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, failures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct failure failures[FAILURES_MAX];
static struct context contexts[DEVICES_MAX];
static char bdf[DEVICES_MAX][16];
static int device_count;
static pid_t owner;
static int lost;
static uint64_t stats[STAT_MAX];
static __thread CUcontext stack[STACK_MAX];
static __thread unsigned depth;

void fake_lock(void) { pthread_mutex_lock(&lock); }
void fake_unlock(void) { pthread_mutex_unlock(&lock); }
void fake_count(enum fake_stat what, uint64_t by)
{
    __atomic_add_fetch(&stats[what], by, __ATOMIC_RELAXED);
}
uint64_t fakecuda_stat(unsigned what)
{
    return what < STAT_MAX ? __atomic_load_n(&stats[what], __ATOMIC_RELAXED) : 0;
}
void fake_lose(CUresult code) { __atomic_store_n(&lost, code, __ATOMIC_RELAXED); }
void fakecuda_lose(int code) { fake_lose(code); }

/* Options set by a test of this process; the strings of the environment must not change. */
static struct { char name[32]; int value; } options[8];

void fakecuda_option(const char *name, int value)
{
    fake_lock();
    for (unsigned i = 0; i < 8; i++)
        if (!options[i].name[0] || !strcmp(options[i].name, name)) {
            options[i].value = value;
            snprintf(options[i].name, sizeof options[i].name, "%s", name);
            break;
        }
    fake_unlock();
}

int fake_option(const char *name, int otherwise)
{
    for (unsigned i = 0; i < 8; i++)
        if (!strcmp(options[i].name, name))
            return options[i].value;
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

unsigned fake_delay_us(void) { return (unsigned)fake_option("FAKECUDA_DELAY_US", 20); }

uint64_t fake_memory_limit(void)
{
    const char *text = getenv("FAKECUDA_MEMORY");
    return text && *text ? strtoull(text, NULL, 0) : 8ull << 30;
}

void fakecuda_fail(const char *call, int code, unsigned after, unsigned times)
{
    pthread_mutex_lock(&failures_lock);
    struct failure *place = NULL;
    for (unsigned i = 0; i < FAILURES_MAX; i++) {
        struct failure *f = &failures[i];
        if (!strcmp(f->call, call)) {
            place = f;
            break;
        }
        if (!f->code && !place)
            place = f;
    }
    if (place) {
        snprintf(place->call, sizeof place->call, "%s", code ? call : "");
        place->code = code;
        place->after = after;
        place->times = times;
        place->counted = times != 0;
    }
    pthread_mutex_unlock(&failures_lock);
}

static CUresult injected(const char *call)
{
    CUresult rc = OK;
    pthread_mutex_lock(&failures_lock);
    for (unsigned i = 0; i < FAILURES_MAX && !rc; i++) {
        struct failure *f = &failures[i];
        if (!f->code || strcmp(f->call, call))
            continue;
        if (f->after) {
            f->after--;
            continue;
        }
        rc = f->code;
        if (f->counted && --f->times == 0)
            memset(f, 0, sizeof *f);
    }
    pthread_mutex_unlock(&failures_lock);
    if (rc >= 700 && rc < 800)
        fake_lose(rc);
    return rc;
}

CUresult fake_enter(const char *call)
{
    CUresult rc = injected(call);
    if (rc)
        return rc;
    /* A child of a fork cannot use its parent's driver. */
    if (owner != getpid())
        return NOT_INITIALIZED;
    return __atomic_load_n(&lost, __ATOMIC_RELAXED);
}

CUresult fake_enter_context(const char *call, CUcontext *current)
{
    CUresult rc = fake_enter(call);
    if (rc)
        return rc;
    *current = depth ? stack[depth - 1] : NULL;
    return *current ? OK : INVALID_CONTEXT;
}

CUresult cuInit(unsigned flags)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (flags)
        return INVALID_VALUE;
    pthread_mutex_lock(&once);
    if (!owner) {
        const char *text = getenv("FAKECUDA_FAIL");
        char *copy = text ? strdup(text) : NULL, *save = NULL;
        for (char *word = copy ? strtok_r(copy, ",", &save) : NULL; word;
             word = strtok_r(NULL, ",", &save)) {
            char call[40];
            int code = 0;
            unsigned from = 1;
            if (sscanf(word, "%39[^=]=%d@%u", call, &code, &from) >= 2)
                fakecuda_fail(call, code, from ? from - 1 : 0, 0);
        }
        free(copy);
        text = getenv("FAKECUDA_DEVICES");
        copy = strdup(text ? text : "0000:b7:00.0");
        for (char *word = strtok_r(copy, ",", &save); word && device_count < DEVICES_MAX;
             word = strtok_r(NULL, ",", &save)) {
            snprintf(bdf[device_count], sizeof bdf[0], "%s", word);
            contexts[device_count].device = device_count;
            device_count++;
        }
        free(copy);
        owner = getpid();
    }
    pthread_mutex_unlock(&once);
    CUresult rc = fake_enter("cuInit");
    return rc ? rc : device_count ? OK : NO_DEVICE;
}

CUresult cuDriverGetVersion(int *out)
{
    *out = 12040;
    return injected("cuDriverGetVersion");
}

CUresult cuGetErrorName(CUresult code, const char **out)
{
    static const struct { CUresult code; const char *name;
    } names[] = {
        { OK, "CUDA_SUCCESS" },
        { INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
        { OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
        { NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED" },
        { NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
        { INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE" },
        { INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
        { MAP_FAILED_, "CUDA_ERROR_MAP_FAILED" },
        { OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM" },
        { INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE" },
        { NOT_READY, "CUDA_ERROR_NOT_READY" },
        { ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS" },
        { NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED" },
        { NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED" },
        { UNKNOWN, "CUDA_ERROR_UNKNOWN" },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *out = names[i].name;
            return OK;
        }
    return INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *out)
{
    CUresult rc = fake_enter("cuDeviceGetCount");
    if (!rc)
        *out = device_count;
    return rc;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    CUresult rc = fake_enter("cuDeviceGet");
    if (rc)
        return rc;
    if (ordinal < 0 || ordinal >= device_count)
        return INVALID_DEVICE;
    *out = ordinal;
    return OK;
}

CUresult cuDeviceGetName(char *out, int size, CUdevice device)
{
    CUresult rc = fake_enter("cuDeviceGetName");
    if (!rc)
        snprintf(out, (size_t)size, "Fake GPU %d", device);
    return rc;
}

CUresult cuDeviceGetPCIBusId(char *out, int size, CUdevice device)
{
    CUresult rc = fake_enter("cuDeviceGetPCIBusId");
    if (rc)
        return rc;
    if (device < 0 || device >= device_count || (size_t)size <= strlen(bdf[device]))
        return INVALID_VALUE;
    /* In the driver's format. */
    for (size_t i = 0; i <= strlen(bdf[device]); i++)
        out[i] = bdf[device][i] >= 'a' && bdf[device][i] <= 'f' ? (char)(bdf[device][i] - 32)
                                                                : bdf[device][i];
    return OK;
}

CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
    CUresult rc = fake_enter("cuDeviceTotalMem_v2");
    (void)device;
    if (!rc)
        *out = (size_t)fake_memory_limit();
    return rc;
}

CUresult cuDeviceGetAttribute(int *out, int which, CUdevice device)
{
    CUresult rc = fake_enter("cuDeviceGetAttribute");
    (void)device;
    if (rc)
        return rc;
    switch (which) {
    case 41: *out = 1; return OK;  /* unified addressing */
    case 102: *out = fake_option("FAKECUDA_VMM", 1); return OK;
    case 103: *out = fake_option("FAKECUDA_VMM", 1); return OK;
    case 116: *out = 1; return OK; /* GPUDirect RDMA */
    case 110: *out = 1; return OK;
    case 124: *out = fake_option("FAKECUDA_DMABUF", 1) != 0; return OK;
    default: return INVALID_VALUE;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    CUresult rc = fake_enter("cuDevicePrimaryCtxRetain");
    if (rc)
        return rc;
    if (device < 0 || device >= device_count)
        return INVALID_DEVICE;
    contexts[device].retained++;
    *out = &contexts[device];
    return OK;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult rc = fake_enter("cuCtxPushCurrent_v2");
    if (rc)
        return rc;
    if (!context || depth == STACK_MAX)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return OK;
}

/* Works on a lost context too, since the stack is the thread's own. */
CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    if (!depth)
        return INVALID_CONTEXT;
    depth--;
    if (out)
        *out = stack[depth];
    return OK;
}
