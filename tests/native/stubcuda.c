/* Driver of a few functions, built as libcuda.so.1, with features that the simulated driver does not have. The
 * device cannot page unified memory (unless STUB_MANAGED=1) or map memory (unless STUB_MAPPED=1). Memory handles have
 * numbers that come again, and there are arrays. */
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

int cuDeviceGetUuid_v2(char *uuid, int device) { /* a MIG slice of the device */
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
    *value = (attribute == 89 && getenv("STUB_MANAGED")) || (attribute == 102 && getenv("STUB_MAPPED"));
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

/* --- pools of any place, whose handle is 0xA00 and the type of the place; those of the driver have 0xB00 --- */

int cuMemPoolCreate(void **pool, const int *properties) {
    *pool = (void *)(size_t)(0xA00 + properties[2]);
    return 0;
}

int cuMemPoolDestroy(void *pool) {
    return pool ? 0 : 1;
}

int cuMemGetDefaultMemPool(void **pool, const int *location, int type) {
    *pool = (void *)(size_t)(0xB00 + location[0]);
    return type != 1;
}

int cuMemGetMemPool(void **pool, const int *location, int type) {
    return cuMemGetDefaultMemPool(pool, location, type);
}

int cuMemAllocFromPoolAsync(u64 *address, size_t bytes, void *pool, void *stream) {
    (void)stream;
    return bytes && pool ? allocate(address) : 1;
}

int cuMemFreeAsync(u64 address, void *stream) {
    (void)stream;
    return address ? 0 : 1;
}

int cuMemFree_v2(u64 address) {
    return address ? 0 : 1;
}

static int handle_in_use; /* the only handle has number 7, and a released handle comes again at once */

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

/* --- entry points from before 64-bit device addresses --- */

int cuMemAlloc(unsigned *address, unsigned bytes) {
    *address = 0x1000;
    return bytes ? 0 : 1;
}

int cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    (void)height, (void)element;
    *address = 0x2000;
    *pitch = width;
    return 0;
}

int cuMemFree(unsigned address) {
    return address == 0x1000 || address == 0x2000 ? 0 : 1;
}

int cuArrayCreate(void **array, const unsigned *shape) {
    *array = (void *)(0x600ul + (shape[0] == 0));
    return 0;
}

int cuMemGetInfo(unsigned *free, unsigned *total) {
    *free = *total = 1;
    return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = (size_t)8 << 30;
    return 0;
}

int cuDeviceTotalMem(unsigned *bytes, int device) {
    (void)device;
    *bytes = 1;
    return 0;
}

/* --- copies and prefetches in batches, which do nothing --- */

int cuMemcpyBatchAsync(u64 *to, u64 *from, size_t *sizes, size_t count, void *attributes, size_t *indices,
                       size_t listed, size_t *failed, void *stream) {
    (void)to, (void)from, (void)sizes, (void)attributes, (void)indices, (void)listed, (void)stream;
    if (failed)
        *failed = 77;
    return count ? 0 : 1;
}

int cuMemcpyBatchAsync_v2(u64 *to, u64 *from, size_t *sizes, size_t count, void *attributes, size_t *indices,
                          size_t listed, void *stream) {
    (void)to, (void)from, (void)sizes, (void)attributes, (void)indices, (void)listed, (void)stream;
    return count ? 0 : 1;
}

int cuMemcpy3DBatchAsync_v2(size_t count, void *operations, u64 flags, void *stream) {
    (void)operations, (void)stream;
    return count && !flags ? 0 : 1;
}

int cuMemPrefetchBatchAsync(u64 *addresses, size_t *sizes, size_t count, void *locations, size_t *indices,
                            size_t listed, u64 flags, void *stream) {
    (void)addresses, (void)sizes, (void)locations, (void)indices, (void)listed, (void)flags, (void)stream;
    return count ? 0 : 1;
}

int cuMemDiscardBatchAsync(u64 *addresses, size_t *sizes, size_t count, u64 flags, void *stream) {
    (void)addresses, (void)sizes, (void)flags, (void)stream;
    return count ? 0 : 1;
}

/* --- a green context, 0x20, whose stream 0x900 is busy for ever --- */

int cuCtxFromGreenCtx(void **context, size_t handle) {
    *context = (void *)(handle + 0x1000);
    return 0;
}

int cuGreenCtxDestroy(size_t handle) {
    return handle != 0x20;
}

int cuStreamGetCtx(size_t stream, void **context) {
    *context = (void *)(stream == 0x900 ? 0x1020ul : 16ul);
    return 0;
}

int cuStreamIsCapturing(size_t stream, int *status) {
    *status = 0;
    return stream == 0 ? 906 : 0;
}

int cuStreamQuery(size_t stream) {
    return stream == 0x900 ? 600 : 0;
}

int cuEventCreate(void **event, unsigned flags) {
    *event = (void *)(size_t)(flags + 1);
    return 0;
}

static int recorded_busy;

int cuEventRecord(void *event, size_t stream) {
    recorded_busy = stream == 0x900;
    return event && stream ? 0 : 1;
}

int cuEventQuery(void *event) {
    return event && recorded_busy ? 600 : 0;
}

int cuEventDestroy_v2(void *event) {
    return event ? 0 : 1;
}

int cuCtxPushCurrent_v2(void *context) {
    return context ? 0 : 201;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = (void *)16;
    return 0;
}

/* --- functions that export memory: unified memory cannot be exported --- */

int cuIpcGetMemHandle(void *handle, u64 address) {
    (void)handle;
    return address ? 801 : 1;
}

int cuMemPoolExportPointer(void *data, u64 address) {
    (void)data;
    return address ? 801 : 1;
}

/* Calls on a handle, which succeed for the driver's own handles only. */

int cuMulticastBindMem(u64 object, size_t object_offset, u64 handle, size_t offset, size_t bytes, u64 flags) {
    (void)object_offset, (void)offset;
    return object && handle == 7 && bytes && !flags ? 0 : 1;
}

int cuMulticastBindMem_v2(u64 object, int device, size_t object_offset, u64 handle, size_t offset, size_t bytes,
                          u64 flags) {
    (void)device;
    return cuMulticastBindMem(object, object_offset, handle, offset, bytes, flags);
}

int cuLogicalEndpointBindMem(unsigned endpoint, int device, u64 endpoint_offset, u64 handle, u64 offset, u64 bytes,
                             u64 flags) {
    (void)device;
    return cuMulticastBindMem(endpoint, endpoint_offset, handle, offset, bytes, flags);
}

/* --- functions that are newer than the shim --- */

int cuFutureCall(void) {
    return 0;
}

int cuFutureCall_v2_ptsz(void) {
    return 0;
}

/* Also find the function STUB_HIDDEN, which the driver does not export. */
int cuGetProcAddress_v2(const char *name, void **function, int version, u64 flags, int *status) {
    const char *hidden = getenv("STUB_HIDDEN");
    int found = strncmp(name, "cuFuture", 8) == 0 || version > 20000 || (hidden && strcmp(name, hidden) == 0);
    *function = found ? (void *)&handle_in_use : NULL;
    if (status)
        *status = flags == 0 && *function ? 0 : 1;
    return 0;
}
