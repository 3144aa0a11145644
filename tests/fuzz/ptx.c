/* Fuzz target for the reader of PTX text in the simulated driver. */
#include "../../native/simcuda/module/ptx.c"

#include <stdint.h>

static void must(int condition) {
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = strndup((const char *)data, size); /* of exact size, so that a read beyond its end is found */
    struct ptx_entry entry;
    char name[SIM_MAX_NAME];
    size_t bytes, seen = 0;
    must(text != NULL);
    ptx_is_text(text);
    for (const char *at = text; (at = ptx_next_entry(at, &entry)); seen++) {
        must(at > text && at <= text + strlen(text) && seen <= size);
        must(memchr(entry.name, 0, sizeof entry.name) && entry.count >= 0);
        for (int i = 0; i < entry.count && i < PTX_MAX_PARAMS; i++)
            must(entry.size[i] <= PTX_MAX_BYTES && entry.offset[i] <= PTX_MAX_BYTES);
    }
    seen = 0;
    for (const char *at = text; (at = ptx_next_global(at, name, &bytes)); seen++)
        must(at > text && at <= text + strlen(text) && seen <= size && memchr(name, 0, sizeof name));
    free(text);
    return 0;
}
