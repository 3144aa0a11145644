/* Reading of the parameters: the defaults, the parameter file with its units, the environment; and the devices'
 * UUIDs. */
#include "base/params.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB (1024.0 * 1024.0 * 1024.0)
#define MAX_VALUE 1e18 /* upper bound of values, so that their sums and products stay meaningful */

static const struct sim_device_params default_device = {
    .name = "Simulated GPU",
    .memory = 1ull << 30,
    .context_memory = 16ull << 20,
    .h2d = 12 * GIB,
    .d2h = 12 * GIB,
    .pageable_h2d = 6 * GIB,
    .pageable_d2h = 6 * GIB,
    .fault = 2 * GIB,
    .populate = 32 * GIB,
    .touch = 8 * GIB,
    .bandwidth = 200 * GIB,
    .flops = 1e12,
    .launch_ns = 4000,
    .multiprocessors = 16,
    .compute_major = 8,
    .compute_minor = 0,
    .concurrent_managed_access = 1,
    .parent = -1,
};

/* Costs as measured on a card with driver 580.159.04 (docs/explanation/figures.md, "On a card"); the rest from the data
 * sheet "NVIDIA H200 Tensor Core GPU". No measurement exists of pageable copies, of migration by page faults and of the
 * device time of an empty launch. */
static const struct sim_device_params h200 = {
    .name = "Simulated H200",
    .memory = 141000000000,
    .context_memory = 524ull << 20,
    .h2d = 55.0e9,
    .d2h = 55.3e9,
    .pageable_h2d = 6 * GIB,
    .pageable_d2h = 6 * GIB,
    .fault = 2 * GIB,
    .populate = 288e9,
    .touch = 17e9,
    .bandwidth = 4.8e12,
    .flops = 67e12,
    .launch_ns = 4000,
    .vmm_ns =
        {[VMM_CREATE] = 74000, [VMM_MAP] = 10000, [VMM_SET_ACCESS] = 88000, [VMM_UNMAP] = 51000, [VMM_RELEASE] = 41000},
    .pin = {[PIN_ALLOC] = 3.0e9, [PIN_FREE] = 11.7e9, [PIN_REGISTER] = 26e9, [PIN_UNREGISTER] = 64e9},
    .multiprocessors = 132,
    .compute_major = 9,
    .concurrent_managed_access = 1,
    .parent = -1,
};

static const struct {
    const char *suffix;
    double factor;
} units[] = {
    {"", 1},     {"b", 1},        {"kib", 1024.0},  {"mib", 1048576.0}, {"gib", GIB},  {"tib", GIB * 1024},
    {"kb", 1e3}, {"mb", 1e6},     {"gb", 1e9},      {"tb", 1e12},       {"k", 1024.0}, {"m", 1048576.0},
    {"g", GIB},  {"gflops", 1e9}, {"tflops", 1e12},
};

static const struct {
    const char *suffix;
    double factor;
} time_units[] = {{"", 1}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};

static int scaled(double number, double factor, double *out) {
    *out = number * factor;
    return *out <= MAX_VALUE ? 0 : -1;
}

/* Parse a number with a unit: bytes, bytes per second ("12 GiB/s"), or nanoseconds ("4 us") if `is_time`. */
static int parse_quantity(const char *text, int is_time, double *out) {
    char *end;
    double number = strtod(text, &end);
    if (end == text || number < 0 || number != number)
        return -1;
    char suffix[16];
    size_t n = 0;
    for (; *end && n + 1 < sizeof suffix; end++)
        if (!isspace((unsigned char)*end))
            suffix[n++] = (char)tolower((unsigned char)*end);
    suffix[n] = 0;
    if (n > 2 && !is_time && strcmp(suffix + n - 2, "/s") == 0)
        suffix[n - 2] = 0;
    if (is_time) {
        for (size_t i = 0; i < sizeof time_units / sizeof *time_units; i++)
            if (strcmp(suffix, time_units[i].suffix) == 0)
                return scaled(number, time_units[i].factor, out);
        return -1;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(suffix, units[i].suffix) == 0)
            return scaled(number, units[i].factor, out);
    return -1;
}

static int set_flag(int *flag, const char *value) {
    *flag = strcmp(value, "1") == 0;
    return *flag || strcmp(value, "0") == 0 ? 0 : -1;
}

#define AT(field) offsetof(struct sim_device_params, field)

static const struct {
    const char *key;
    size_t offset;
} times[] = {
    {"launch_overhead", AT(launch_ns)},    {"create_time", AT(vmm_ns[VMM_CREATE])},
    {"map_time", AT(vmm_ns[VMM_MAP])},     {"access_time", AT(vmm_ns[VMM_SET_ACCESS])},
    {"unmap_time", AT(vmm_ns[VMM_UNMAP])}, {"release_time", AT(vmm_ns[VMM_RELEASE])},
};

static const struct {
    const char *key;
    size_t offset;
} rates[] = {
    {"h2d_bandwidth", AT(h2d)},
    {"d2h_bandwidth", AT(d2h)},
    {"pageable_h2d_bandwidth", AT(pageable_h2d)},
    {"pageable_d2h_bandwidth", AT(pageable_d2h)},
    {"populate_bandwidth", AT(populate)},
    {"touch_bandwidth", AT(touch)},
    {"fault_bandwidth", AT(fault)},
    {"memory_bandwidth", AT(bandwidth)},
    {"flops", AT(flops)},
    {"host_alloc_bandwidth", AT(pin[PIN_ALLOC])},
    {"host_free_bandwidth", AT(pin[PIN_FREE])},
    {"register_bandwidth", AT(pin[PIN_REGISTER])},
    {"unregister_bandwidth", AT(pin[PIN_UNREGISTER])},
};

static int set_device_key(struct sim_device_params *device, const char *key, const char *value) {
    double number;
    if (strcmp(key, "card") == 0)
        return strcmp(value, "H200") == 0 ? (*device = h200, 0) : -1;
    if (strcmp(key, "name") == 0)
        return snprintf(device->name, sizeof device->name, "%s", value), 0;
    if (strcmp(key, "compute_capability") == 0)
        return sscanf(value, "%2d.%2d", &device->compute_major, &device->compute_minor) == 2 ? 0 : -1;
    if (strcmp(key, "concurrent_managed_access") == 0)
        return set_flag(&device->concurrent_managed_access, value);
    if (strcmp(key, "multicast") == 0)
        return set_flag(&device->multicast, value);
    if (strcmp(key, "keeps_unused") == 0)
        return set_flag(&device->keeps_unused, value);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (strcmp(key, times[i].key) == 0)
            return parse_quantity(value, 1, &number)
                       ? -1
                       : (*(uint64_t *)((char *)device + times[i].offset) = (uint64_t)number, 0);
    if (parse_quantity(value, 0, &number))
        return -1;
    if (strcmp(key, "memory") == 0)
        return device->memory = (uint64_t)number, number >= 4194304 ? 0 : -1;
    if (strcmp(key, "context_memory") == 0)
        return device->context_memory = (uint64_t)number, 0;
    if (strcmp(key, "module_memory") == 0)
        return device->module_memory = (uint64_t)number, 0;
    if (strcmp(key, "multiprocessors") == 0)
        return number >= 1 && number <= 1e6 ? (device->multiprocessors = (int)number, 0) : -1;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (strcmp(key, rates[i].key) == 0)
            return number > 0 ? (*(double *)((char *)device + rates[i].offset) = number, 0) : -1;
    return -1;
}

static int set_path(char path[SIM_PATH], const char *value) {
    return snprintf(path, SIM_PATH, "%s", value) < SIM_PATH ? 0 : -1;
}

static int set_global_key(struct sim_params *params, const char *key, const char *value) {
    double number;
    if (strcmp(key, "state") == 0)
        return set_path(params->machine, value);
    if (strcmp(key, "log") == 0)
        return set_path(params->log, value);
    if (strcmp(key, "shared") == 0)
        return set_flag(&params->shared, value);
    if (strcmp(key, "time_scale") == 0)
        return parse_quantity(value, 0, &params->time_scale);
    if (strcmp(key, "slice") == 0)
        return parse_quantity(value, 1, &number) || number < 1e5 ? -1 : (params->slice_ns = (uint64_t)number, 0);
    if (strcmp(key, "slice_switch") == 0)
        return parse_quantity(value, 1, &number) ? -1 : (params->slice_switch_ns = (uint64_t)number, 0);
    if (strcmp(key, "recharge") == 0)
        return parse_quantity(value, 1, &number) || number < 1e6 ? -1 : (params->recharge_ns = (uint64_t)number, 0);
    if (strcmp(key, "reservation_unit") == 0)
        return parse_quantity(value, 0, &number) || number < 4096 || number > GIB || (uint64_t)number % 4096
                   ? -1
                   : (params->reservation_unit = (uint64_t)number, 0);
    return -1;
}

/* A MIG slice has the parameters of its device, unless its section has others. Return the slice, or NULL if no device
 * comes before the slice, or there is no room. */
static struct sim_device_params *add_slice(struct sim_params *params, int index) {
    if (index < 1 || index >= SIM_MAX_DEVICES)
        return NULL;
    const struct sim_device_params *before = &params->device[index - 1];
    int parent = before->parent < 0 ? index - 1 : before->parent;
    struct sim_device_params *slice = &params->device[index];
    *slice = params->device[parent];
    char *end = slice->name + strnlen(slice->name, sizeof slice->name - sizeof " MIG");
    memcpy(end, " MIG", sizeof " MIG");
    slice->parent = parent;
    slice->slices = 0;
    params->device[parent].slices++;
    return slice;
}

/* Return the index of the first device in MIG mode whose slices have more memory than the device, or -1. */
static int find_overfull(const struct sim_params *params) {
    uint64_t left = 0;
    for (int i = 0; i < params->devices; i++) {
        const struct sim_device_params *device = &params->device[i];
        if (device->parent < 0)
            left = device->memory;
        else if (device->memory > left)
            return device->parent;
        else
            left -= device->memory;
    }
    return -1;
}

/* Keep the first `count` devices with their slices, or repeat the last device. -1: there is no room. */
static int set_device_count(struct sim_params *params, int count) {
    int last = 0, found = 0;
    for (int i = 0; i < params->devices; i++)
        if (params->device[i].parent < 0) {
            if (found++ == count)
                return params->devices = i, 0;
            last = i;
        }
    int entries = params->devices - last;
    for (; found < count; found++, params->devices += entries) {
        if (params->devices + entries > SIM_MAX_DEVICES)
            return -1;
        for (int i = 0; i < entries; i++) {
            struct sim_device_params *copy = &params->device[params->devices + i];
            *copy = params->device[last + i];
            if (copy->parent >= 0)
                copy->parent = params->devices;
        }
    }
    return 0;
}

static char *strip(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    for (size_t n = strlen(text); n && isspace((unsigned char)text[n - 1]); n--)
        text[n - 1] = 0;
    return text;
}

static int read_file(struct sim_params *params, const char *path, char *problem, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(problem, size, "can't read %s: %s", path, strerror(errno));
        return -1;
    }
    char *line = NULL;
    size_t room = 0;
    int number = 0, section = -1, failed = 0;
    while (!failed && getline(&line, &room, file) >= 0) {
        number++;
        line[strcspn(line, "#\n")] = 0;
        char *text = strip(line);
        if (!*text)
            continue;
        if (strcmp(text, "[device]") == 0) {
            failed = ++section >= SIM_MAX_DEVICES;
            if (!failed)
                params->device[section] = default_device;
            continue;
        }
        if (strcmp(text, "[slice]") == 0) {
            failed = !add_slice(params, ++section);
            continue;
        }
        char *equals = strchr(text, '=');
        if (equals)
            *equals = 0;
        failed = !equals || (section < 0 ? set_global_key(params, strip(text), strip(equals + 1))
                                         : set_device_key(&params->device[section], strip(text), strip(equals + 1)));
    }
    free(line);
    fclose(file);
    if (failed)
        snprintf(problem, size, "%s:%d: not understood", path, number);
    else if (section >= 0)
        params->devices = section + 1;
    return failed ? -1 : 0;
}

int sim_params_load(struct sim_params *params, char *problem, size_t size) {
    memset(params, 0, sizeof *params);
    params->devices = 1;
    params->time_scale = 1.0;
    params->slice_ns = 2000000;
    params->recharge_ns = 50000000;
    params->reservation_unit = 4096;
    params->device[0] = default_device;
    snprintf(params->machine, sizeof params->machine, "/dev/shm/gpushare-sim-%u.%d", (unsigned)getuid(), SIM_LAYOUT);
    problem[0] = 0;

    const char *text = getenv("GPUSHARE_SIM_CONFIG");
    if (text && *text && read_file(params, text, problem, size))
        return -1;
    const char *state = getenv("GPUSHARE_SIM_STATE"), *log = getenv("GPUSHARE_SIM_LOG");
    if ((state && *state && set_path(params->machine, state)) || (log && *log && set_path(params->log, log))) {
        snprintf(problem, size, "GPUSHARE_SIM_STATE or GPUSHARE_SIM_LOG: the path is too long");
        return -1;
    }
    if ((text = getenv("GPUSHARE_SIM_SHARED")) && *text && set_flag(&params->shared, text)) {
        snprintf(problem, size, "GPUSHARE_SIM_SHARED=%s: 0 or 1 is needed", text);
        return -1;
    }
    if ((text = getenv("GPUSHARE_SIM_STRICT_EXIT")) && *text && set_flag(&params->strict_exit, text)) {
        snprintf(problem, size, "GPUSHARE_SIM_STRICT_EXIT=%s: 0 or 1 is needed", text);
        return -1;
    }
    if ((text = getenv("GPUSHARE_SIM_KERNEL_NS")) && *text) {
        double time;
        if (parse_quantity(text, 1, &time)) {
            snprintf(problem, size, "GPUSHARE_SIM_KERNEL_NS=%s: a time in nanoseconds is needed", text);
            return -1;
        }
        params->kernel_ns = (uint64_t)time;
        params->runs_any = 1;
    }
    if ((text = getenv("GPUSHARE_SIM_DEVICES")) && *text) {
        char *end;
        long count = strtol(text, &end, 10);
        if (*end || count < 0 || count > SIM_MAX_DEVICES) {
            snprintf(problem, size, "GPUSHARE_SIM_DEVICES=%s: a number from 0 to %d is needed", text, SIM_MAX_DEVICES);
            return -1;
        }
        if (set_device_count(params, (int)count)) {
            snprintf(problem, size, "GPUSHARE_SIM_DEVICES=%s: at most %d devices and MIG slices are allowed", text,
                     SIM_MAX_DEVICES);
            return -1;
        }
    }
    if ((text = getenv("GPUSHARE_SIM_MEMORY")) && *text) {
        double bytes;
        if (parse_quantity(text, 0, &bytes) || bytes < 4194304) {
            snprintf(problem, size, "GPUSHARE_SIM_MEMORY=%s: a size of at least 4 MiB is needed", text);
            return -1;
        }
        for (int i = 0; i < params->devices; i++)
            if (params->device[i].parent < 0)
                params->device[i].memory = (uint64_t)bytes;
    }
    int overfull = find_overfull(params);
    if (overfull >= 0) {
        snprintf(problem, size, "the MIG slices of %s have more memory than the device: give each [slice] its memory",
                 params->device[overfull].name);
        return -1;
    }
    return 0;
}

void sim_params_uuid(const struct sim_params *params, int index, unsigned char uuid[16]) {
    uint64_t hash = 1469598103934665603ull; /* FNV-1a over the machine's path: one path, one set of devices */
    for (const char *c = params->machine; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
    uint32_t uid = params->shared ? 0 : (uint32_t)getuid();
    memcpy(uuid, "SIM", 3);
    for (int i = 0; i < 4; i++)
        uuid[3 + i] = (unsigned char)(uid >> (24 - 8 * i));
    uuid[7] = (unsigned char)index;
    for (int i = 0; i < 8; i++)
        uuid[8 + i] = (unsigned char)(hash >> (56 - 8 * i));
}
