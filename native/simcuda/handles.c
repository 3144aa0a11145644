/* The process-wide state, and memory for objects. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "sim.h"

struct sim_state sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .capture_lock = PTHREAD_MUTEX_INITIALIZER, .slot = -1};
__thread struct sim_thread sim_thread __attribute__((tls_model("initial-exec")));

struct spare {
    struct spare *next;
    void *object;
};

static struct spare *spares[MAGIC_USER_OBJECT - MAGIC_CONTEXT + 1];
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;

void *object_get(uint32_t magic, size_t size) {
    void *object = NULL;
    pthread_mutex_lock(&spares_lock);
    struct spare *spare = spares[magic - MAGIC_CONTEXT];
    if (spare) {
        spares[magic - MAGIC_CONTEXT] = spare->next;
        object = spare->object;
        free(spare);
    }
    pthread_mutex_unlock(&spares_lock);
    return object ? object : calloc(1, size);
}

void object_put(void *object, uint32_t magic) {
    *(uint32_t *)object = 0;
    struct spare *spare = malloc(sizeof *spare);
    if (!spare)
        return; /* lost, without harm */
    spare->object = object;
    pthread_mutex_lock(&spares_lock);
    spare->next = spares[magic - MAGIC_CONTEXT];
    spares[magic - MAGIC_CONTEXT] = spare;
    pthread_mutex_unlock(&spares_lock);
}
