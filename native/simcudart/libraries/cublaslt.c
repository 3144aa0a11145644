/* cuBLASLt: descriptors that hold nothing, one algorithm without workspace, and products. */
#include "library.h"

enum { SUCCESS, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

struct algorithm {
    uint64_t data[8];
};

struct heuristic {
    struct algorithm algorithm;
    size_t workspace_bytes;
    int state; /* 0: usable */
    float waves;
    int reserved[4];
};

EXPORT size_t cublasLtGetVersion(void) {
    return 130000;
}

#define DESCRIPTOR(name)                                                                                               \
    EXPORT int cublasLt##name##Create(void **out) {                                                                    \
        return library_create(out) ? ALLOC_FAILED : SUCCESS;                                                           \
    }                                                                                                                  \
    EXPORT int cublasLt##name##Destroy(void *descriptor) {                                                             \
        free(descriptor);                                                                                              \
        return SUCCESS;                                                                                                \
    }                                                                                                                  \
    EXPORT int cublasLt##name##SetAttribute(void *descriptor, int attribute, const void *value, size_t bytes) {        \
        (void)descriptor, (void)attribute, (void)value, (void)bytes;                                                   \
        return SUCCESS;                                                                                                \
    }
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatmulPreference)

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d,
                                          void *preference, int room, struct heuristic *out, int *count) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (room < 1 || !out || !count)
        return INVALID_VALUE;
    memset(out, 0, sizeof *out);
    *count = 1;
    return SUCCESS;
}

EXPORT int cublasLtMatmul(void *handle, void *product, const void *alpha, const void *a, void *a_layout, const void *b,
                          void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                          const struct algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
    (void)handle, (void)product, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c,
        (void)c_layout, (void)d, (void)d_layout, (void)algorithm, (void)workspace, (void)bytes;
    return simcudart_launch("cublasLtMatmul", stream) ? EXECUTION_FAILED : SUCCESS;
}
