/* NVML's figures of memory, for programs that query the device they run on: they agree with cuMemGetInfo. Everything
 * else of NVML passes, also queries before the shim is active and queries of another device. The shim never loads
 * NVML. */
#include "hooks/hooks.h"
#include "memory/memory.h"

#include <dlfcn.h>
#include <string.h>

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
};

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
EXPORT int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

static void *real_nvml(const char *name) {
    static _Atomic(void *) library;
    void *handle = atomic_load(&library);
    if (!handle) {
        handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
        atomic_store(&library, handle);
    }
    return handle ? real_dlsym(handle, name) : NULL;
}

/* NVML's own function is replaced; another library's function of that name stays. */
void *nvml_replace(void *found, const char *name) {
    if (!found || found != real_nvml(name))
        return found;
    return strcmp(name, "nvmlDeviceGetMemoryInfo_v2") == 0 ? (void *)nvmlDeviceGetMemoryInfo_v2
                                                           : (void *)nvmlDeviceGetMemoryInfo;
}

bool is_hooked_nvml_name(const char *name) {
    return strcmp(name, "nvmlDeviceGetMemoryInfo") == 0 || strcmp(name, "nvmlDeviceGetMemoryInfo_v2") == 0;
}

/* Return the shim's record of the device, or NULL if the program does not use it. */
static const struct device *known_device(nvmlDevice_t device) {
    int (*uuid_of)(nvmlDevice_t, char *, unsigned) = (__typeof__(uuid_of))real_nvml("nvmlDeviceGetUUID");
    char uuid[96] = "";
    if (atomic_load(&shim.state) != SHIM_ACTIVE || !uuid_of || uuid_of(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return NULL;
    for (int i = 0; i < shim.device_count; i++)
        if (strcmp(shim.devices[i].uuid, uuid) == 0)
            return &shim.devices[i];
    return NULL;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    __typeof__(&nvmlDeviceGetMemoryInfo) function = (__typeof__(function))real_nvml("nvmlDeviceGetMemoryInfo");
    int result = function ? function(device, memory) : NVML_ERROR_LIBRARY_NOT_FOUND;
    const struct device *ours = result == NVML_SUCCESS ? known_device(device) : NULL;
    if (ours) {
        uint64_t total, free;
        account_apparent_memory(ours->memory, memory->free, &total, &free);
        *memory = (nvmlMemory_t){.total = total, .free = free, .used = total - free};
    }
    return result;
}

int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    __typeof__(&nvmlDeviceGetMemoryInfo_v2) function = (__typeof__(function))real_nvml("nvmlDeviceGetMemoryInfo_v2");
    int result = function ? function(device, memory) : NVML_ERROR_LIBRARY_NOT_FOUND;
    const struct device *ours = result == NVML_SUCCESS ? known_device(device) : NULL;
    if (ours) {
        uint64_t total, free;
        account_apparent_memory(ours->memory, memory->free, &total, &free);
        *memory = (nvmlMemory_v2_t){memory->version, total, 0, free, total - free};
    }
    return result;
}
