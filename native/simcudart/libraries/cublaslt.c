/* cuBLASLt: descriptors that keep their attributes, one algorithm without workspace, and products. */
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

EXPORT int cublasLtCreate(void **handle) {
    return library_create(handle) ? ALLOC_FAILED : SUCCESS;
}

EXPORT int cublasLtDestroy(void *handle) {
    free(handle);
    return SUCCESS;
}

/* Numbers of attributes, and values that they begin with: cublasLt.h. */
enum { COMPUTE_TYPE, SCALE_TYPE, EPILOGUE = 7, EPILOGUE_DEFAULT = 1 };
enum { TYPE, ROWS = 2, COLUMNS, LEADING_DIMENSION, BATCH_COUNT };
#define ATTRIBUTES 64 /* kept; each has at most 8 bytes */

struct descriptor {
    uint64_t values[ATTRIBUTES];
};

#define DESCRIPTOR(name)                                                                                               \
    EXPORT int cublasLt##name##Destroy(struct descriptor *descriptor) {                                                \
        free(descriptor);                                                                                              \
        return SUCCESS;                                                                                                \
    }                                                                                                                  \
    EXPORT int cublasLt##name##SetAttribute(struct descriptor *descriptor, unsigned attribute, const void *value,      \
                                            size_t bytes) {                                                            \
        if (!descriptor || !value)                                                                                     \
            return INVALID_VALUE;                                                                                      \
        if (attribute < ATTRIBUTES && bytes <= sizeof *descriptor->values)                                             \
            memcpy(&descriptor->values[attribute], value, bytes);                                                      \
        return SUCCESS;                                                                                                \
    }                                                                                                                  \
    EXPORT int cublasLt##name##GetAttribute(struct descriptor *descriptor, unsigned attribute, void *value,            \
                                            size_t bytes, size_t *written) {                                           \
        if (!descriptor || !value || attribute >= ATTRIBUTES || bytes > sizeof *descriptor->values)                    \
            return INVALID_VALUE;                                                                                      \
        memcpy(value, &descriptor->values[attribute], bytes);                                                          \
        if (written)                                                                                                   \
            *written = bytes;                                                                                          \
        return SUCCESS;                                                                                                \
    }
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatmulPreference)

static int create(struct descriptor **out, struct descriptor values) {
    if (!out || !(*out = malloc(sizeof **out)))
        return ALLOC_FAILED;
    **out = values;
    return SUCCESS;
}

EXPORT int cublasLtMatmulDescCreate(struct descriptor **out, unsigned compute_type, unsigned scale_type) {
    return create(
        out, (struct descriptor){
                 .values = {[COMPUTE_TYPE] = compute_type, [SCALE_TYPE] = scale_type, [EPILOGUE] = EPILOGUE_DEFAULT}});
}

EXPORT int cublasLtMatrixLayoutCreate(struct descriptor **out, unsigned type, uint64_t rows, uint64_t columns,
                                      int64_t leading_dimension) {
    return create(out, (struct descriptor){.values = {[TYPE] = type,
                                                      [ROWS] = rows,
                                                      [COLUMNS] = columns,
                                                      [LEADING_DIMENSION] = (uint64_t)leading_dimension,
                                                      [BATCH_COUNT] = 1}});
}

EXPORT int cublasLtMatmulPreferenceCreate(struct descriptor **out) {
    return create(out, (struct descriptor){0});
}

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
