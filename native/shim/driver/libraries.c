/* Libraries of NVIDIA whose work may pass the gate: they reach the device by interfaces of their own besides the
 * driver's public functions. The list of loaded objects is read, because a program may be linked with such a library. */
#include "driver/driver.h"

#include <link.h>
#include <string.h>

static const struct {
    const char *file;
    uint32_t bit;
} bypassing[] = {
    {"libnvcuvid.so", GPUSHARE_LIBRARY_NVDEC},
    {"libnvidia-encode.so", GPUSHARE_LIBRARY_NVENC},
    {"libnvoptix.so", GPUSHARE_LIBRARY_OPTIX},
};

static uint64_t objects_seen; /* the number of objects loaded so far, at the last search */

static int search(struct dl_phdr_info *object, size_t bytes, void *data) {
    const char *slash = strrchr(object->dlpi_name, '/'), *file = slash ? slash + 1 : object->dlpi_name;
    (void)bytes;
    if (*file == 0) { /* the program itself comes first */
        if (object->dlpi_adds == objects_seen)
            return 1;
        objects_seen = object->dlpi_adds;
    }
    for (size_t i = 0; i < sizeof bypassing / sizeof *bypassing; i++)
        if (strncmp(file, bypassing[i].file, strlen(bypassing[i].file)) == 0)
            *(uint32_t *)data |= bypassing[i].bit;
    return 0;
}

/* A library that has been unloaded still counts, because its work may not have ended. */
uint32_t bypassing_libraries(void) {
    static uint32_t found;
    uint32_t before = found;
    dl_iterate_phdr(search, &found);
    PAGE_STORE(the_page()->report.bypassing_libraries, found);
    if (found != before)
        log_message(LOG_INFO, "found libraries whose work may pass the gate (bits %#x)", found);
    return found;
}
