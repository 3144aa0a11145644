/* Common parts of the stand-ins for NVIDIA's libraries. build.py writes a row COMPUTED, TEXT or REFUSED for each
 * function that a framework needs and that has no body here. */
#ifndef SIMCUDART_LIBRARY_H
#define SIMCUDART_LIBRARY_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Handle of a library, by which the program names the stream of later calls. */
struct library {
    void *stream;
    int modes[4];
};

extern int simcudart_launch(const char *name, void *stream); /* of the runtime: one launch without any effect */

static inline int library_create(void **out) {
    return !out || !(*out = calloc(1, sizeof(struct library)));
}

/* A function that takes the library's handle first and works on its stream. The results are undefined. */
#define COMPUTED(name, failure)                                                                                        \
    EXPORT uint64_t name(struct library *library) {                                                                    \
        return library && !simcudart_launch(#name, library->stream) ? 0 : failure;                                     \
    }

/* A function that is not simulated reports that once. `status` is the library's own word for it. */
#define REFUSED(name, status)                                                                                          \
    EXPORT uint64_t name(void) {                                                                                       \
        static atomic_flag is_reported = ATOMIC_FLAG_INIT;                                                             \
        if (!atomic_flag_test_and_set(&is_reported))                                                                   \
            fprintf(stderr, "simcudart: %s is not simulated and returns %d\n", #name, status);                         \
        return status;                                                                                                 \
    }

/* A function that returns the text of an error, which the caller prints. */
#define TEXT(name)                                                                                                     \
    EXPORT const char *name(void) {                                                                                    \
        return "not simulated";                                                                                        \
    }

#endif
