/* Code of modules and libraries in contexts. With lazy loading a library takes memory in a context when a call first
 * needs a function or variable of the library there.
 *
 * Sources: CUDA programming guide, "Lazy Loading" and "CUDA Environment Variables"; documentation of cuLibraryLoadData
 * and cuModuleEnumerateFunctions. */
#include <stdlib.h>
#include <string.h>

#include "machine/machine.h"
#include "module/module.h"

/* Only the end of the module frees a code, so that launches read the list without a lock. */
struct sim_code {
    _Atomic uint64_t context; /* its id; 0: the context has ended */
    int device;
    struct sim_code *next;
};

static pthread_mutex_t codes_lock = PTHREAD_MUTEX_INITIALIZER; /* changes of all lists */

int code_is_lazy(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return !mode || strcmp(mode, "EAGER") != 0;
}

static struct sim_code *find(const struct sim_module *module, uint64_t context) {
    struct sim_code *code = atomic_load_explicit(&module->codes, memory_order_acquire);
    while (code && atomic_load_explicit(&code->context, memory_order_relaxed) != context)
        code = code->next;
    return code;
}

static struct sim_context *place(const struct sim_module *module, struct sim_context *context) {
    return module->context ? module->context : context_of_memory(context);
}

int code_is_loaded(const struct sim_module *module, struct sim_context *context) {
    return find(module, place(module, context)->id) != NULL;
}

static void discharge(const struct sim_code *code) {
    uint64_t bytes = sim.params.device[code->device].module_memory;
    if (bytes)
        machine_discharge(sim.machine, code->device, sim.slot, bytes);
}

/* codes_lock is held. */
static CUresult charge(struct sim_module *module, const struct sim_context *context) {
    uint64_t evicted = 0, bytes = sim.params.device[context->device].module_memory;
    struct sim_code *ended = find(module, 0), *code = ended ? ended : calloc(1, sizeof *code);
    if (!code)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes && machine_charge(sim.machine, context->device, sim.slot, bytes, &evicted)) {
        if (!ended)
            free(code);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    code->device = context->device;
    atomic_store(&code->context, context->id);
    if (!ended) {
        code->next = atomic_load(&module->codes);
        atomic_store_explicit(&module->codes, code, memory_order_release);
    }
    return CUDA_SUCCESS;
}

CUresult code_load(struct sim_module *module, struct sim_context *context) {
    context = place(module, context);
    if (__builtin_expect(find(module, context->id) != NULL, 1))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&codes_lock);
    CUresult result = find(module, context->id) ? CUDA_SUCCESS : charge(module, context);
    pthread_mutex_unlock(&codes_lock);
    return result;
}

/* Freed memory does not help a later launch (tests/driver_facts/test_lazy_loading.py). */
CUresult code_load_library(struct sim_module *library, struct sim_context *context) {
    if (__builtin_expect(atomic_load_explicit(&library->launch_failed, memory_order_relaxed), 0))
        return CUDA_ERROR_UNKNOWN;
    CUresult result = code_load(library, context);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        atomic_store(&library->launch_failed, 1);
    return result;
}

CUresult code_load_here(struct sim_module *module) {
    struct sim_context *context = module->context;
    CUresult result = context ? CUDA_SUCCESS : context_current(&context);
    return result ? result : code_load(module, context);
}

void code_unload(struct sim_module *module) {
    pthread_mutex_lock(&codes_lock);
    struct sim_code *code = atomic_exchange(&module->codes, NULL);
    while (code) {
        struct sim_code *next = code->next;
        if (atomic_load(&code->context))
            discharge(code);
        free(code);
        code = next;
    }
    pthread_mutex_unlock(&codes_lock);
}

void code_end_context(struct sim_module *module, const struct sim_context *context) {
    pthread_mutex_lock(&codes_lock);
    struct sim_code *code = find(module, context->id);
    if (code) {
        atomic_store(&code->context, 0);
        discharge(code);
    }
    pthread_mutex_unlock(&codes_lock);
}
