/* cuDNN: handles, descriptors that hold nothing, and the backend interface with one engine for every operation. */
#include "library.h"

enum { SUCCESS, ALLOC_FAILED = 1004, BAD_PARAM = 2000, EXECUTION_FAILED = 5000 };

/* The version must be at least the one that the framework was built with, and its first number the same. */
#define VERSION 99900

EXPORT size_t cudnnGetVersion(void) {
    return VERSION;
}

EXPORT size_t cudnnGetCudartVersion(void) {
    return 13000;
}

EXPORT int cudnnGetProperty(int type, int *value) {
    static const int parts[] = {VERSION / 10000, VERSION % 10000 / 100, VERSION % 100};
    if (type < 0 || type > 2 || !value)
        return BAD_PARAM;
    *value = parts[type];
    return SUCCESS;
}

EXPORT const char *cudnnGetErrorString(int status) {
    return status ? "the stand-in for cuDNN has no such operation" : "CUDNN_STATUS_SUCCESS";
}

EXPORT void cudnnGetLastErrorString(char *text, size_t bytes) {
    if (bytes)
        text[0] = 0;
}

EXPORT int cudnnCreate(void **handle) {
    return library_create(handle) ? ALLOC_FAILED : SUCCESS;
}

EXPORT int cudnnDestroy(struct library *library) {
    free(library);
    return SUCCESS;
}

EXPORT int cudnnSetStream(struct library *library, void *stream) {
    library->stream = stream;
    return SUCCESS;
}

EXPORT int cudnnGetStream(struct library *library, void **stream) {
    *stream = library->stream;
    return SUCCESS;
}

#define DESCRIPTOR(name)                                                                                               \
    EXPORT int cudnnCreate##name##Descriptor(void **out) {                                                             \
        return library_create(out) ? ALLOC_FAILED : SUCCESS;                                                           \
    }                                                                                                                  \
    EXPORT int cudnnDestroy##name##Descriptor(void *descriptor) {                                                      \
        free(descriptor);                                                                                              \
        return SUCCESS;                                                                                                \
    }
DESCRIPTOR(Activation)
DESCRIPTOR(Tensor)
DESCRIPTOR(Filter)

#define IGNORED(name)                                                                                                  \
    EXPORT int name(void) {                                                                                            \
        return SUCCESS;                                                                                                \
    }
IGNORED(cudnnSetActivationDescriptor)
IGNORED(cudnnSetTensorNdDescriptor)
IGNORED(cudnnSetFilterNdDescriptor)

EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x,
                                                                    void *z, void *y, void *scale, void *activation,
                                                                    size_t *bytes) {
    (void)handle, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    *bytes = 0;
    return SUCCESS;
}

EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y,
                                                             void *dy, void *dz, void *dx, void *scale,
                                                             void *activation, size_t *bytes) {
    (void)handle, (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale,
        (void)activation;
    *bytes = 0;
    return SUCCESS;
}

EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                                void *activation, void *x, size_t *bytes) {
    (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
    *bytes = 0;
    return SUCCESS;
}

/* --- the backend interface: a program asks for engines of an operation, makes a plan of one, and executes the plan  */

enum { TYPE_DESCRIPTOR = 15 }; /* cudnnBackendAttributeType_t */
static const uint8_t bytes_of_type[] = {8, 4, 4, 4, 4, 8, 4, 4, 8, 4, 4, 4, 4, 4, 4};

EXPORT int cudnnBackendCreateDescriptor(int type, void **out) {
    (void)type;
    return library_create(out) ? ALLOC_FAILED : SUCCESS;
}

EXPORT int cudnnBackendDestroyDescriptor(void *descriptor) {
    free(descriptor);
    return SUCCESS;
}

EXPORT int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values) {
    (void)descriptor, (void)name, (void)type, (void)count, (void)values;
    return SUCCESS;
}

IGNORED(cudnnBackendFinalize)

/* One descriptor of every kind that the program asks for, which the program has made itself; one number, which is 0. */
EXPORT int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t room, int64_t *count, void *values) {
    (void)descriptor, (void)name;
    if (count)
        *count = 1;
    if (values && room > 0 && type >= 0 && type < TYPE_DESCRIPTOR)
        memset(values, 0, bytes_of_type[type]);
    return SUCCESS;
}

EXPORT int cudnnBackendExecute(struct library *library, void *plan, void *tensors) {
    (void)plan, (void)tensors;
    return simcudart_launch("cudnnBackendExecute", library->stream) ? EXECUTION_FAILED : SUCCESS;
}
