/* cuBLAS: handles and their modes. */
#include "library.h"

enum { SUCCESS, ALLOC_FAILED = 3, INVALID_VALUE = 7 };
enum { MATH_MODE, POINTER_MODE };

EXPORT int cublasCreate_v2(void **handle) {
    return library_create(handle) ? ALLOC_FAILED : SUCCESS;
}

EXPORT int cublasDestroy_v2(struct library *library) {
    free(library);
    return SUCCESS;
}

EXPORT int cublasSetStream_v2(struct library *library, void *stream) {
    library->stream = stream;
    return SUCCESS;
}

EXPORT int cublasGetStream_v2(struct library *library, void **stream) {
    *stream = library->stream;
    return SUCCESS;
}

EXPORT int cublasSetWorkspace_v2(struct library *library, void *memory, size_t bytes) {
    (void)library, (void)memory, (void)bytes;
    return SUCCESS;
}

EXPORT int cublasSetSmCountTarget(struct library *library, int count) {
    (void)library, (void)count;
    return SUCCESS;
}

#define MODE(name, number)                                                                                             \
    EXPORT int cublasSet##name(struct library *library, int mode) {                                                    \
        library->modes[number] = mode;                                                                                 \
        return SUCCESS;                                                                                                \
    }                                                                                                                  \
    EXPORT int cublasGet##name(struct library *library, int *mode) {                                                   \
        if (!mode)                                                                                                     \
            return INVALID_VALUE;                                                                                      \
        *mode = library->modes[number];                                                                                \
        return SUCCESS;                                                                                                \
    }
MODE(MathMode, MATH_MODE)
MODE(PointerMode_v2, POINTER_MODE)
