/* Parts of the interface that the simulated devices do not have: the linker of machine code, and messages in the
 * driver's log. */
#include <stdio.h>

#include "base/exports.h"

static CUresult without_linker(void) {
    SIM_ENTER();
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
    (void)count, (void)options, (void)values, (void)state;
    return without_linker();
}

CUresult cuLinkAddData_v2(void *state, int type, void *data, size_t bytes, const char *name, unsigned count,
                          int *options, void **values) {
    (void)state, (void)type, (void)data, (void)bytes, (void)name, (void)count, (void)options, (void)values;
    return without_linker();
}

CUresult cuLinkAddFile_v2(void *state, int type, const char *path, unsigned count, int *options, void **values) {
    (void)state, (void)type, (void)path, (void)count, (void)options, (void)values;
    return without_linker();
}

CUresult cuLinkComplete(void *state, void **cubin, size_t *bytes) {
    (void)state, (void)cubin, (void)bytes;
    return without_linker();
}

CUresult cuLinkDestroy(void *state) {
    (void)state;
    return without_linker();
}

/* No message ever comes, so a handle only has to differ from NULL. */
CUresult cuLogsRegisterCallback(void *callback, void *data, CUlogsCallbackHandle *handle) {
    (void)data;
    if (!callback)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle)
        *handle = callback;
    return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
    return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(unsigned *iterator, unsigned flags) {
    if (!iterator || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *iterator = 0;
    return CUDA_SUCCESS;
}

CUresult cuLogsDumpToFile(unsigned *iterator, const char *path, unsigned flags) {
    (void)iterator;
    FILE *file = path && !flags ? fopen(path, "we") : NULL;
    if (!file)
        return CUDA_ERROR_INVALID_VALUE;
    fclose(file);
    return CUDA_SUCCESS;
}

CUresult cuLogsDumpToMemory(unsigned *iterator, char *buffer, size_t *bytes, unsigned flags) {
    (void)iterator;
    if (!buffer || !bytes || !*bytes || flags)
        return CUDA_ERROR_INVALID_VALUE;
    buffer[0] = '\0';
    *bytes = 0;
    return CUDA_SUCCESS;
}
