/* The exports that depend on the default stream, and cuGetProcAddress over the same table. */
#include <string.h>

#include "base/exports.h"

#define PLAIN(name, symbol, since, params)
#define STREAM(name, symbol, since, twin, params, arguments)                                                           \
    CUresult symbol params {                                                                                           \
        return sim_##symbol(CU_STREAM_LEGACY, SIM_LIST arguments);                                                     \
    }                                                                                                                  \
    CUresult symbol##_##twin params {                                                                                  \
        return sim_##symbol(CU_STREAM_PER_THREAD, SIM_LIST arguments);                                                 \
    }
#include "base/symbols.def"
#undef PLAIN
#undef STREAM

static const struct {
    const char *name;
    int since;
    void *function, *per_thread;
} rows[] = {
#define PLAIN(name, symbol, since, params) {#name, since, (void *)symbol, (void *)symbol},
#define STREAM(name, symbol, since, twin, params, arguments) {#name, since, (void *)symbol, (void *)symbol##_##twin},
#include "base/symbols.def"
#undef PLAIN
#undef STREAM
};

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (!name || !function || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    int found = -1, known = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) {
            known = 1;
            if (rows[i].since <= version && (found < 0 || rows[i].since > rows[found].since))
                found = (int)i;
        }
    *function = found < 0 ? NULL : flags & CU_PROC_PER_THREAD ? rows[found].per_thread : rows[found].function;
    if (status)
        *status = found >= 0 ? CU_PROC_FOUND : known ? CU_PROC_VERSION_TOO_OLD : CU_PROC_NOT_FOUND;
    return found < 0 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Private tables of the real driver: there is nothing to simulate. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    (void)id;
    if (table)
        *table = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}
