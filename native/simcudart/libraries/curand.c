/* cuRAND: generators. */
#include "library.h"

enum { SUCCESS, ALLOCATION_FAILED = 102 };

EXPORT int curandCreateGenerator(void **generator, int kind) {
    (void)kind;
    return library_create(generator) ? ALLOCATION_FAILED : SUCCESS;
}

EXPORT int curandDestroyGenerator(struct library *generator) {
    free(generator);
    return SUCCESS;
}

EXPORT int curandSetStream(struct library *generator, void *stream) {
    generator->stream = stream;
    return SUCCESS;
}

EXPORT int curandSetPseudoRandomGeneratorSeed(struct library *generator, unsigned long long seed) {
    (void)generator, (void)seed;
    return SUCCESS;
}

EXPORT int curandSetGeneratorOffset(struct library *generator, unsigned long long offset) {
    (void)generator, (void)offset;
    return SUCCESS;
}
