/* Functions that the process has launched. With lazy loading the driver loads the code of a function at its first launch
 * in a context, and that launch lacks memory on a full device. So the first launch takes the slow path, which waits for
 * room and repeats the launch.
 *
 * A kernel of a library loads in each context anew, so each context has a table. Two functions may compete for a place of
 * the table: they take the slow path in turns, which costs time only.
 *
 * Source: documentation of cuLibraryLoadData, and CUDA programming guide, "Lazy Loading". */
#include "gate/gate.h"

#define MAX_CONTEXTS 64

static _Atomic(CUcontext) contexts[MAX_CONTEXTS]; /* those that have ended included: others may get their handles */
static struct loaded_functions tables[MAX_CONTEXTS];
static struct loaded_functions of_unknown_context; /* of a disabled shim, which never waits for room */
static struct loaded_functions always_empty;       /* of too many contexts */

struct loaded_functions *loaded_functions_in(CUcontext context) {
    if (!context)
        return &of_unknown_context;
    for (int i = 0; i < MAX_CONTEXTS; i++) {
        CUcontext known = NULL;
        if (atomic_compare_exchange_strong(&contexts[i], &known, context) || known == context)
            return &tables[i];
    }
    return &always_empty;
}

void loaded_functions_add(const struct thread *thread, CUfunction function, CUstream stream) {
    if (atomic_load_explicit(&thread->last_stream, memory_order_relaxed) != stream)
        return; /* a capturing stream, for example: its launch has loaded nothing */
    if (thread->loaded != &always_empty)
        PAGE_STORE(thread->loaded->at[loaded_functions_place(function)], function);
}

void loaded_functions_forget(CUcontext context) {
    for (int i = 0; i < MAX_CONTEXTS && atomic_load(&contexts[i]); i++)
        for (int j = 0; (!context || atomic_load(&contexts[i]) == context) && j < 1 << LOADED_FUNCTIONS_BITS; j++)
            PAGE_STORE(tables[i].at[j], NULL);
}
