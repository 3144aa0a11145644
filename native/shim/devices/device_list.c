/* The devices that the program may use, as the driver describes them. */
#include "devices/devices.h"
#include "driver/driver.h"

#include <stdio.h>
#include <string.h>

static void format_uuid(char *text, size_t room, const char *prefix, const CUuuid *uuid) {
    int at = snprintf(text, room, "%s-", prefix);
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, room - (size_t)at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                       uuid->bytes[i]);
}

static bool has_attribute(CUdevice device, int attribute) {
    int value = 0;
    return REAL(cuDeviceGetAttribute)(&value, attribute, device) == CUDA_SUCCESS && value;
}

/* Read the device of this number. False: the driver refuses. */
static bool read_device(int number, CUdevice *handle, struct device *device) {
    CUuuid whole, part;
    size_t memory = 0;
    if (REAL(cuDeviceGet)(handle, number) != CUDA_SUCCESS || REAL(cuDeviceGetUuid)(&whole, *handle) != CUDA_SUCCESS)
        return false;
    if (REAL(cuDeviceGetUuid_v2)(&part, *handle) != CUDA_SUCCESS)
        part = whole;
    /* The newer call names a slice of a partitioned device, the older call the whole device. */
    format_uuid(device->uuid, sizeof device->uuid, memcmp(&part, &whole, sizeof part) ? "MIG" : "GPU", &part);
    REAL(cuDeviceGetName)(device->name, sizeof device->name - 1, *handle);
    REAL(cuDeviceTotalMem_v2)(&memory, *handle);
    device->memory = memory;
    return true;
}

/* A program thread that looks for the memory of the device by its UUID meanwhile finds none. */
void devices_read_again(void) {
    CUdevice handle;
    read_device(0, &handle, &shim.devices[0]);
}

bool devices_find(bool *maps_memory) {
    int count = 0;
    *maps_memory = true;
    if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count < 1)
        return false;
    shim.device_count = 0;
    shim.pages_unified = true;
    for (int i = 0; i < count && i < MAX_DEVICES; i++) {
        struct device *device = &shim.devices[shim.device_count];
        CUdevice handle;
        if (!read_device(i, &handle, device))
            continue;
        shim.pages_unified = shim.pages_unified && has_attribute(handle, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
        *maps_memory = *maps_memory && has_attribute(handle, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
        shim.device_count++;
    }
    return shim.device_count > 0;
}
