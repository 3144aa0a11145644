/* A driver of a few functions, for what the simulated one does not have: a device that cannot page unified memory (unless
 * STUB_MANAGED=1), virtual-memory management whose handles' numbers come again, arrays. Built as libcuda.so.1. */
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;

int cuInit(unsigned flags) {
    return flags ? 1 : 0;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetUuid(char *uuid, int device) {
    (void)device;
    memset(uuid, 0x11, 16);
    return 0;
}

int cuDeviceGetUuid_v2(char *uuid, int device) { /* a slice of it */
    (void)device;
    memset(uuid, 0x22, 16);
    return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    strncpy(name, "Stub", (size_t)size);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = 1 << 30;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 89 && getenv("STUB_MANAGED");
    return 0;
}

int cuCtxGetCurrent(void **context) {
    *context = (void *)16;
    return 0;
}

static int allocate(u64 *address) {
    static u64 next = 0x7000000000;
    *address = next += 1 << 21;
    return 0;
}

int cuMemAlloc_v2(u64 *address, size_t bytes) {
    return bytes ? allocate(address) : 1;
}

int cuMemAllocManaged(u64 *address, size_t bytes, unsigned flags) {
    return bytes && flags ? allocate(address) : 1;
}

int cuMemFree_v2(u64 address) {
    return address ? 0 : 1;
}

static int handle_in_use; /* there is one handle, number 7, as soon as it is released it comes again */

int cuMemCreate(u64 *handle, size_t bytes, const void *properties, u64 flags) {
    (void)bytes, (void)properties, (void)flags;
    if (handle_in_use)
        return 2;
    handle_in_use = 1;
    *handle = 7;
    return 0;
}

int cuMemRelease(u64 handle) {
    if (handle != 7 || !handle_in_use)
        return 400;
    handle_in_use--;
    return 0;
}

int cuMemRetainAllocationHandle(u64 *handle, void *address) {
    (void)address;
    handle_in_use++;
    *handle = 7;
    return 0;
}

int cuMemMap(u64 address, size_t bytes, size_t offset, u64 handle, u64 flags) {
    (void)bytes, (void)offset, (void)flags;
    return address && handle == 7 ? 0 : 1;
}

int cuMemUnmap(u64 address, size_t bytes) {
    return address && bytes ? 0 : 1;
}

int cuArray3DCreate_v2(void **array, const void *shape) {
    (void)shape;
    *array = (void *)0x500;
    return 0;
}

int cuArrayDestroy(void *array) {
    return array ? 0 : 1;
}
