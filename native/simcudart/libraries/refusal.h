/* Functions of NVIDIA's libraries that the stand-ins do not have. build.py writes a row for each. */
#ifndef SIMCUDART_REFUSAL_H
#define SIMCUDART_REFUSAL_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

/* Each refusal is reported once. `status` is the library's own word for "not supported". */
#define REFUSED(name, status)                                                                                          \
    EXPORT uint64_t name(void) {                                                                                       \
        static atomic_flag is_reported = ATOMIC_FLAG_INIT;                                                             \
        if (!atomic_flag_test_and_set(&is_reported))                                                                   \
            fprintf(stderr, "simcudart: %s is not simulated and returns %d\n", #name, status);                         \
        return status;                                                                                                 \
    }

#endif
