/* Memory for the objects that handles name. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "base/sim.h"

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
