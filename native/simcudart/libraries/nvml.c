/* NVML, which frameworks load at run time: the simulated devices, without figures. */
#include <dlfcn.h>

#include "library.h"

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE };

#define MAX_ENTRIES 16 /* devices and MIG slices */
#define MAX_SLICES 7   /* of a device, as of most cards */

struct entry {
    char uuid[96], name[96];
    unsigned long long memory; /* bytes */
    int parent, slices;        /* see simcuda_describe */
};

static const char *text_of(const char *object, const char *name, char out[96]) {
    char key[32];
    snprintf(key, sizeof key, "\"%s\": \"", name);
    const char *found = strstr(object, key);
    if (found)
        snprintf(out, 96, "%.*s", (int)strcspn(found + strlen(key), "\""), found + strlen(key));
    return found;
}

static long long number_of(const char *object, const char *name) {
    char key[32];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *found = strstr(object, key);
    return found ? strtoll(found + strlen(key), NULL, 10) : 0;
}

/* Read the devices and their slices, and return their number. */
static int read_entries(struct entry entries[MAX_ENTRIES]) {
    char json[8192];
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    int (*describe)(char *, size_t) = driver ? (__typeof__(describe))dlsym(driver, "simcuda_describe") : NULL;
    int length = describe ? describe(json, sizeof json) : -1, count = 0;
    if (length < 0 || (size_t)length >= sizeof json)
        return 0;
    for (const char *object = json; count < MAX_ENTRIES && (object = strchr(object, '{')); object++, count++) {
        struct entry *entry = &entries[count];
        if (!text_of(object, "uuid", entry->uuid) || !text_of(object, "name", entry->name))
            break;
        entry->memory = (unsigned long long)number_of(object, "memory");
        entry->parent = (int)number_of(object, "parent");
        entry->slices = (int)number_of(object, "slices");
    }
    return count;
}

/* The handle of an entry is its index + 1. */
static void *handle_at(int index) {
    return (void *)(uintptr_t)(index + 1);
}

/* Return the index of a handle, or -1. */
static int find(void *device, struct entry entries[MAX_ENTRIES]) {
    uintptr_t number = (uintptr_t)device;
    return number >= 1 && number <= (uintptr_t)read_entries(entries) ? (int)number - 1 : -1;
}

/* Return the index of a MIG slice, or -1 for any other handle. */
static int find_slice(void *device, struct entry entries[MAX_ENTRIES]) {
    int index = find(device, entries);
    return index >= 0 && entries[index].parent >= 0 ? index : -1;
}

static int copy_text(const char *text, char *out, unsigned room) {
    return (unsigned)snprintf(out, room, "%s", text) < room ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlInit(void) {
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) {
    return SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
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

/* Devices without their slices, which belong to no index here, as in NVML. */
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    struct entry entries[MAX_ENTRIES];
    *count = 0;
    for (int i = 0, end = read_entries(entries); i < end; i++)
        *count += entries[i].parent < 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    struct entry entries[MAX_ENTRIES];
    if (!device)
        return INVALID_ARGUMENT;
    for (int i = 0, end = read_entries(entries); i < end; i++)
        if (entries[i].parent < 0 && index-- == 0)
            return *device = handle_at(i), SUCCESS;
    return INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned room) {
    struct entry entries[MAX_ENTRIES];
    int index = find(device, entries);
    return index < 0 ? INVALID_ARGUMENT : copy_text(entries[index].uuid, uuid, room);
}

EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned room) {
    struct entry entries[MAX_ENTRIES];
    int index = find(device, entries);
    return index < 0 ? INVALID_ARGUMENT : copy_text(entries[index].name, name, room);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    struct entry entries[MAX_ENTRIES];
    for (int i = 0, end = read_entries(entries); i < end; i++)
        if (strcmp(entries[i].uuid, uuid) == 0)
            return *device = handle_at(i), SUCCESS;
    return NOT_FOUND;
}

/* The bus of a simulated device is its index + 1. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    struct entry entries[MAX_ENTRIES];
    unsigned domain, bus;
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2)
        return INVALID_ARGUMENT;
    void *found = (void *)(uintptr_t)bus;
    int index = find(found, entries);
    return index < 0 || entries[index].parent >= 0 ? NOT_FOUND : (*device = found, SUCCESS);
}

/* The used bytes are not simulated here. */
EXPORT int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]) {
    struct entry entries[MAX_ENTRIES];
    int index = find(device, entries);
    if (index < 0 || !memory)
        return INVALID_ARGUMENT;
    memory[0] = memory[1] = entries[index].memory, memory[2] = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is_slice) {
    struct entry entries[MAX_ENTRIES];
    if (find(device, entries) < 0)
        return INVALID_ARGUMENT;
    *is_slice = find_slice(device, entries) >= 0;
    return SUCCESS;
}

/* A device with slices is in MIG mode, and the others do not support the mode. */
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    struct entry entries[MAX_ENTRIES];
    int index = find(device, entries);
    if (index < 0)
        return INVALID_ARGUMENT;
    if (!entries[index].slices)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    struct entry entries[MAX_ENTRIES];
    int index = find(device, entries);
    if (index < 0)
        return INVALID_ARGUMENT;
    *count = entries[index].slices ? MAX_SLICES : 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
    struct entry entries[MAX_ENTRIES];
    int parent = find(device, entries);
    if (parent < 0)
        return INVALID_ARGUMENT;
    if (!entries[parent].slices)
        return NOT_SUPPORTED;
    if (index >= (unsigned)entries[parent].slices)
        return NOT_FOUND;
    *slice = handle_at(parent + 1 + (int)index);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device) {
    struct entry entries[MAX_ENTRIES];
    int index = find_slice(slice, entries);
    if (index < 0)
        return INVALID_ARGUMENT;
    *device = handle_at(entries[index].parent);
    return SUCCESS;
}

/* The numbers that CUDA_VISIBLE_DEVICES takes: GPU instances from 1 on, each with compute instance 0. */
EXPORT int nvmlDeviceGetGpuInstanceId(void *slice, unsigned *id) {
    struct entry entries[MAX_ENTRIES];
    int index = find_slice(slice, entries);
    if (index < 0)
        return NOT_SUPPORTED;
    *id = (unsigned)(index - entries[index].parent);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeInstanceId(void *slice, unsigned *id) {
    struct entry entries[MAX_ENTRIES];
    *id = 0;
    return find_slice(slice, entries) < 0 ? NOT_SUPPORTED : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
    (void)device, (void)processes;
    *count = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    return nvmlDeviceGetComputeRunningProcesses(device, count, processes);
}

/* The answers of a card without these links, and of a device in MIG mode for the utilisation. */
#define ABSENT(name)                                                                                                   \
    EXPORT int name(void) {                                                                                            \
        return NOT_SUPPORTED;                                                                                          \
    }
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
ABSENT(nvmlDeviceGetNvLinkRemoteDeviceType)
ABSENT(nvmlDeviceGetP2PStatus)
ABSENT(nvmlDeviceGetGpuFabricInfoV)
ABSENT(nvmlDeviceGetUtilizationRates)
ABSENT(nvmlDeviceGetTopologyCommonAncestor)
