/* List of the devices: the devices that the program sees (CUDA_VISIBLE_DEVICES), and all devices as JSON.
 *
 * A device in MIG mode is used through its slices only, and a process sees one slice and then no other device. Source:
 * NVIDIA Multi-Instance GPU User Guide, "CUDA Device Enumeration". The order of indices is that of DataDog/datadog-agent
 * pull request 36377: whole devices first, then the first slice of each device in MIG mode. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/api.h"
#include "base/exports.h"

#define UUID_TEXT 48 /* bytes */

int whole_device(int index) {
    int parent = sim.params.device[index].parent;
    return parent < 0 ? index : parent;
}

static void uuid_text(const struct sim_params *params, int index, char text[UUID_TEXT]) {
    unsigned char uuid[16];
    sim_params_uuid(params, index, uuid);
    int n = snprintf(text, UUID_TEXT, params->device[index].parent < 0 ? "GPU-" : "MIG-");
    for (int i = 0; i < 16; i++)
        n += snprintf(text + n, UUID_TEXT - (size_t)n, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                      uuid[i]);
}

/* The form of drivers before R470: MIG-<UUID of the device>/<GPU instance>/<compute instance>. A slice here is a GPU
 * instance, numbered from 1, with compute instance 0. */
static int find_by_instance(const char *entry) {
    const char *slash = strchr(entry, '/');
    int instance, compute_instance, end = 0;
    if (!slash || strncasecmp(entry, "MIG-GPU-", 8) != 0 ||
        sscanf(slash, "/%d/%d%n", &instance, &compute_instance, &end) != 2 || slash[end] || compute_instance)
        return -1;
    for (int i = 0; i < sim.params.devices; i++) {
        char text[UUID_TEXT];
        uuid_text(&sim.params, i, text);
        size_t length = (size_t)(slash - entry) - 4;
        if (strlen(text) == length && strncasecmp(entry + 4, text, length) == 0)
            return instance >= 1 && instance <= sim.params.device[i].slices ? i + instance : -1;
    }
    return -1;
}

/* Find the device of one entry of CUDA_VISIBLE_DEVICES: an index into `order`, or the beginning of a UUID. A device in
 * MIG mode stands for its first slice. -1: no such device. */
static int find_device(const char *entry, const int *order, int count) {
    char *end;
    long index = strtol(entry, &end, 10);
    if (end != entry && !*end)
        return index >= 0 && index < count ? order[index] : -1;
    for (int i = 0; i < sim.params.devices; i++) {
        char text[UUID_TEXT];
        uuid_text(&sim.params, i, text);
        if (strlen(entry) > 4 && strncasecmp(entry, text, strlen(entry)) == 0)
            return sim.params.device[i].slices ? i + 1 : i;
    }
    return find_by_instance(entry);
}

static int order_devices(int order[SIM_MAX_DEVICES]) {
    int count = 0;
    for (int i = 0; i < sim.params.devices; i++)
        if (sim.params.device[i].parent < 0 && !sim.params.device[i].slices)
            order[count++] = i;
    for (int i = 0; i < sim.params.devices; i++)
        if (sim.params.device[i].slices)
            order[count++] = i + 1;
    return count;
}

/* As in the real driver, the list ends at the first entry that names no device. */
static void read_list(const char *list, const int *order, int count) {
    char copy[1024], *rest = copy, *entry;
    snprintf(copy, sizeof copy, "%s", list);
    while ((entry = strsep(&rest, ","))) {
        while (*entry == ' ')
            entry++;
        entry[strcspn(entry, " ")] = 0;
        int index = find_device(entry, order, count);
        if (index < 0 || sim.visible_count == SIM_MAX_DEVICES)
            return;
        sim.visible[sim.visible_count++] = index;
    }
}

void find_visible_devices(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int order[SIM_MAX_DEVICES], count = order_devices(order);
    sim.visible_count = 0;
    if (list)
        read_list(list, order, count);
    else
        memcpy(sim.visible, order, (size_t)(sim.visible_count = count) * sizeof *order);
    for (int i = 0; i < sim.visible_count; i++)
        if (sim.params.device[sim.visible[i]].parent >= 0) {
            sim.visible[0] = sim.visible[i];
            sim.visible_count = 1;
        }
}

int simcuda_describe(char *json, size_t size) {
    struct sim_params params;
    char problem[512];
    if (!json)
        size = 0;
    if (sim_params_load(&params, problem, sizeof problem)) {
        for (char *c = problem; *c; c++)
            if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
                *c = '\'';
        snprintf(json, size, "{\"error\": \"%s\"}", problem);
        return -1;
    }
    int n = snprintf(json, size, "[");
    for (int i = 0; i < params.devices; i++) {
        char text[UUID_TEXT], name[sizeof params.device[i].name];
        uuid_text(&params, i, text);
        memcpy(name, params.device[i].name, sizeof name);
        for (char *c = name; *c; c++)
            if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
                *c = '\'';
        size_t used = (size_t)n < size ? (size_t)n : size;
        n += snprintf(json ? json + used : NULL, size - used,
                      "%s{\"index\": %d, \"uuid\": \"%s\", \"name\": \"%s\", \"memory\": %llu, \"simulated\": true, "
                      "\"parent\": %d, \"slices\": %d}",
                      i ? ", " : "", i, text, name, (unsigned long long)params.device[i].memory,
                      params.device[i].parent, params.device[i].slices);
    }
    size_t used = (size_t)n < size ? (size_t)n : size;
    n += snprintf(json ? json + used : NULL, size - used, "]");
    return n;
}
