/* Fuzz target for the readers of the simulated driver's parameter file and variables.
 * The first byte of the input selects the reader. */
#include "../../native/simcuda/base/params.c"

#include <sys/mman.h>

static void must(int condition) {
    if (!condition)
        abort();
}

static void check(const struct sim_params *params) {
    must(params->devices >= 0 && params->devices <= SIM_MAX_DEVICES);
    must(params->time_scale >= 0 && params->time_scale < 1e30);
    must(params->slice_ns >= 100000 && params->recharge_ns >= 1000000);
    must(memchr(params->machine, 0, SIM_PATH) && memchr(params->log, 0, SIM_PATH));
    for (int i = 0; i < params->devices; i++) {
        const struct sim_device_params *device = &params->device[i];
        must(memchr(device->name, 0, sizeof device->name) != NULL);
        must(device->memory >= 4 << 20 && device->memory < 1ull << 62 && device->context_memory < 1ull << 62 &&
             device->module_memory < 1ull << 62);
        must(device->h2d > 0 && device->d2h > 0 && device->fault > 0 && device->bandwidth > 0 && device->flops > 0);
        must(device->multiprocessors >= 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct sim_params params;
    static const char *names[] = {"GPUSHARE_SIM_STATE", "GPUSHARE_SIM_LOG", "GPUSHARE_SIM_DEVICES",
                                  "GPUSHARE_SIM_MEMORY"};
    char problem[256], path[64];
    unsigned char uuid[16];
    if (!size)
        return 0;
    unsetenv("GPUSHARE_SIM_CONFIG");
    for (int i = 0; i < 4; i++)
        unsetenv(names[i]);
    int file = -1;
    if (data[0] >= '1' && data[0] <= '4') {
        char *text = strndup((const char *)data + 1, size - 1);
        must(text && setenv(names[data[0] - '1'], text, 1) == 0);
        free(text);
    } else {
        file = memfd_create("params", 0);
        must(file >= 0 && write(file, data + 1, size - 1) == (ssize_t)size - 1);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        must(setenv("GPUSHARE_SIM_CONFIG", path, 1) == 0);
    }
    if (sim_params_load(&params, problem, sizeof problem) == 0) {
        check(&params);
        sim_params_uuid(&params, 0, uuid);
    } else {
        must(problem[0] != 0);
    }
    if (file >= 0)
        close(file);
    return 0;
}
