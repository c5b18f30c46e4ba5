/*
 * A program that uses NVIDIA's gdrcopy beside this library: no names may clash. gdrcopy's names are
 * listed here, so the test runs where gdrcopy is not installed.
 */
#include <gdrcore.h>
#include <stdio.h>

struct gdr;
typedef struct gdr *gdr_t;
typedef struct gdr_mh_s { unsigned long h; } gdr_mh_t;
typedef struct gdr_info {
    uint64_t va, mapped_size;
    uint32_t page_size;
    uint64_t tm_cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1, wc_mapping : 1;
} gdr_info_t;
typedef struct gdr_info_v2 { uint64_t va; } gdr_info_v2_t;
typedef enum gdr_mapping_type {
    GDR_MAPPING_TYPE_NONE,
    GDR_MAPPING_TYPE_WC,
    GDR_MAPPING_TYPE_CACHING
} gdr_mapping_type_t;
typedef enum gdr_pin_flags { GDR_PIN_FLAG_DEFAULT, GDR_PIN_FLAG_FORCE_PCIE } gdr_pin_flags_t;
typedef enum gdr_attr { GDR_ATTR_USE_PERSISTENT_MAPPING = 1, GDR_ATTR_MAX } gdr_attr_t;
#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1UL << GPU_PAGE_SHIFT)
#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 5

gdr_t gdr_open(void) { return NULL; }
int gdr_close(gdr_t g) { return g != NULL; }
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
                   gdr_mh_t *handle)
{
    handle->h = addr + size + p2p_token + va_space;
    return g != NULL;
}
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle) {
    return gdr_pin_buffer(g, addr, size, flags, 0, handle);
}
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle) { return g != NULL || handle.h == 0; }
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size)
{
    *va = NULL;
    return g != NULL || handle.h + size == 0;
}
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
    return g != NULL || va != NULL || handle.h + size == 0;
}
int gdr_get_info(gdr_t g, gdr_mh_t handle, gdr_info_t *info)
{
    info->va = handle.h;
    return g != NULL;
}
int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info)
{
    info->va = handle.h;
    return g != NULL;
}
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag)
{
    *flag = 0;
    return g != NULL || handle.h == 0;
}
int gdr_copy_to_mapping(gdr_mh_t handle, void *map, const void *host, size_t size)
{
    return handle.h == 0 || (map && host && size);
}
int gdr_copy_from_mapping(gdr_mh_t handle, void *host, const void *map, size_t size)
{
    return handle.h == 0 || (map && host && size);
}
void gdr_runtime_get_version(int *major, int *minor)
{
    *major = GDR_API_MAJOR_VERSION;
    *minor = GDR_API_MINOR_VERSION;
}
void gdr_driver_get_version(gdr_t g, int *major, int *minor)
{
    (void)g;
    gdr_runtime_get_version(major, minor);
}
int gdr_get_attribute(gdr_t g, int *value, gdr_attr_t attr) { *value = attr; return g != NULL; }

int main(void) {
    gdr_mh_t mh = {0};
    gdr_info_t info = {0};
    int major = 0, minor = 0;
    gdr_t g = gdr_open();
    gdr_runtime_get_version(&major, &minor);
    if (gdr_pin_buffer(g, 1, GPU_PAGE_SIZE, 0, 0, &mh) || gdr_get_info(g, mh, &info) ||
        gdr_close(g))
        return 1;
    printf("gdrcopy %d.%d beside gdrcore %s\n", major, minor, gdrc_version());
    return gdrc_version_number() == GDRC_VERSION ? 0 : 1;
}
