/* Libraries of NVIDIA whose work may pass the gate: they reach the device by interfaces of their own besides the
 * driver's public functions. The list of loaded objects is read, because a program may be linked with such a
 * library. Newer forms of hooked functions pass the gate as well, and count as one more library. */
#include "driver/driver.h"

#include <link.h>

static const struct {
    const char *file;
    uint32_t bit;
} bypassing[] = {
    {"libnvcuvid.so", GPUSHARE_LIBRARY_NVDEC},
    {"libnvidia-encode.so", GPUSHARE_LIBRARY_NVENC},
    {"libnvoptix.so", GPUSHARE_LIBRARY_OPTIX},
};

struct search {
    bool is_begun;
    uint32_t found;
};

static uint64_t objects_seen; /* the number of objects loaded so far, at the last search */

/* Return true if the last part of the path begins with `file`. The loader protects the path by a lock of its own, which
 * ThreadSanitizer does not know. */
__attribute__((no_sanitize("thread"))) static bool is_path_of(const char *path, const char *file) {
    const char *part = path;
    for (; *path; path++)
        part = *path == '/' ? path + 1 : part;
    for (; *file && *part == *file; part++)
        file++;
    return !*file;
}

static int search(struct dl_phdr_info *object, size_t bytes, void *data) {
    struct search *result = data;
    (void)bytes;
    if (!result->is_begun && object->dlpi_adds == objects_seen)
        return 1;
    result->is_begun = true;
    objects_seen = object->dlpi_adds;
    for (size_t i = 0; i < sizeof bypassing / sizeof *bypassing; i++)
        if (is_path_of(object->dlpi_name, bypassing[i].file))
            result->found |= bypassing[i].bit;
    return 0;
}

/* A library that has been unloaded still counts, because its work may not have ended. */
uint32_t bypassing_libraries(void) {
    static uint32_t found;
    struct search result = {0};
    uint32_t before = found;
    dl_iterate_phdr(search, &result);
    found |= result.found | (newer_forms_are_used() ? GPUSHARE_LIBRARY_NEWER : 0);
    PAGE_STORE(the_page()->report.bypassing_libraries, found);
    if (found != before)
        log_message(LOG_INFO, "found libraries or functions whose work may pass the gate (bits %#x)", found);
    return found;
}
