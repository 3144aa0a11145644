/* Hooks on the handles of code.
 *
 * Code that ends must be forgotten before another function can get its handle.
 *
 * A launch by the handle of a library's kernel loads the code at the first launch in a context. A launch that finds no
 * room then cannot be repeated, even with room (tests/driver_facts/test_lazy_loading.py). So the shim loads the code
 * before that launch. */
#include "hooks/hooks.h"

#include <stdlib.h>

static void add_kernel(CUkernel kernel, CUlibrary library) {
    struct entry entry = {.key = (uintptr_t)kernel, .physical_or_generation = (uintptr_t)library};
    if (kernel && !ledger_find(LEDGER_KERNELS, entry.key, &entry))
        ledger_add(LEDGER_KERNELS, &entry);
}

static bool is_any(const struct entry *entry) {
    return entry->key;
}

static void forget_kernels(CUlibrary library) {
    struct entry *list;
    size_t count = ledger_list(LEDGER_KERNELS, is_any, &list);
    for (size_t i = 0; i < count; i++)
        if (list[i].physical_or_generation == (uintptr_t)library)
            ledger_remove(LEDGER_KERNELS, list[i].key, &list[i]);
    if (count)
        free(list);
}

CUresult hook_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CUresult result = REAL(cuLibraryGetKernel)(kernel, library, name);
    if (result == CUDA_SUCCESS)
        add_kernel(*kernel, library);
    return result;
}

CUresult hook_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    unsigned found = 0;
    CUresult result = REAL(cuLibraryEnumerateKernels)(kernels, count, library);
    if (result == CUDA_SUCCESS && REAL(cuLibraryGetKernelCount)(&found, library) == CUDA_SUCCESS)
        for (unsigned i = 0; i < count && i < found; i++)
            add_kernel(kernels[i], library);
    return result;
}

CUresult kernel_load(const struct thread *thread, CUfunction function, CUstream stream) {
    struct entry found;
    CUfunction loaded;
    if (!shim_is_active() || atomic_load_explicit(&thread->last_stream, memory_order_relaxed) != stream ||
        is_loaded(thread, function) || !ledger_find(LEDGER_KERNELS, (uintptr_t)function, &found))
        return CUDA_SUCCESS;
    RELAXED_MODE;
    CUresult result = REAL(cuKernelGetFunction)(&loaded, (CUkernel)function);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
}

CUresult hook_cuModuleUnload(CUmodule module) {
    loaded_functions_forget(NULL);
    return REAL(cuModuleUnload)(module);
}

CUresult hook_cuLibraryUnload(CUlibrary library) {
    loaded_functions_forget(NULL);
    forget_kernels(library);
    return REAL(cuLibraryUnload)(library);
}
