/* NVML, which frameworks load at run time: the simulated devices, without figures. */
#include <dlfcn.h>

#include "library.h"

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE };

/* Copy the text of the field `name` of a device, or return 0 if there is no such device. */
static int field(unsigned index, const char *name, char *out, size_t room) {
    char json[8192], key[32];
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    int (*describe)(char *, size_t) = driver ? (__typeof__(describe))dlsym(driver, "simcuda_describe") : NULL;
    int length = describe ? describe(json, sizeof json) : -1;
    if (length < 0 || (size_t)length >= sizeof json)
        return 0;
    snprintf(key, sizeof key, "\"%s\": \"", name);
    const char *found = json;
    for (unsigned i = 0; (found = strstr(found, key)); i++) {
        found += strlen(key);
        if (i == index)
            return snprintf(out, room, "%.*s", (int)strcspn(found, "\""), found);
    }
    return 0;
}

static int handle_of(unsigned index, void **device) {
    char uuid[96];
    if (!device)
        return INVALID_ARGUMENT;
    *device = (void *)(uintptr_t)(index + 1);
    return field(index, "uuid", uuid, sizeof uuid) ? SUCCESS : NOT_FOUND;
}

EXPORT int nvmlInit(void) {
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) {
    return SUCCESS;
}

EXPORT int nvmlShutdown(void) {
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int status) {
    return status ? "not simulated" : "success";
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    void *device;
    for (*count = 0; handle_of(*count, &device) == SUCCESS;)
        ++*count;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    return handle_of(index, device);
}

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned room) {
    int length = field((unsigned)(uintptr_t)device - 1, "uuid", uuid, room);
    return !length ? INVALID_ARGUMENT : (unsigned)length < room ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char found[96];
    for (unsigned i = 0; field(i, "uuid", found, sizeof found); i++)
        if (strcmp(found, uuid) == 0)
            return handle_of(i, device);
    return NOT_FOUND;
}

/* The bus of a simulated device is its number, from 1 on. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    unsigned domain, bus;
    return sscanf(id, "%x:%x:", &domain, &bus) == 2 && bus ? handle_of(bus - 1, device) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
    (void)device, (void)processes;
    *count = 0;
    return SUCCESS;
}

/* The answers of a card without these links. */
#define ABSENT(name)                                                                                                   \
    EXPORT int name(void) {                                                                                            \
        return NOT_SUPPORTED;                                                                                          \
    }
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
ABSENT(nvmlDeviceGetNvLinkRemoteDeviceType)
ABSENT(nvmlDeviceGetP2PStatus)
ABSENT(nvmlDeviceGetGpuFabricInfoV)
