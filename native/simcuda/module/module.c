/* Modules and libraries, made from PTX text or from a cubin. The entry points of PTX text are matched with the built-in
 * functions by name. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exports.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "work/builtin_kernels.h"
#include "work/engine.h"
#include "module/cubin.h"
#include "module/ptx.h"
#include "module/module.h"

struct sim_global {
    struct sim_global *next;
    char name[SIM_MAX_NAME];
    size_t bytes;
    CUdeviceptr address; /* 0: not used yet */
};

static struct sim_module *modules; /* guarded by sim.lock */

static int module_is_valid(CUmodule module) {
    return sim_is_object(module) && module->magic == MAGIC_MODULE;
}

static struct sim_function *add_function(struct sim_module *module, const struct ptx_entry *entry) {
    struct sim_function *function = object_get(MAGIC_FUNCTION, sizeof *function);
    if (!function)
        return NULL;
    memset(function, 0, sizeof *function);
    snprintf(function->name, sizeof function->name, "%s", entry->name);
    const struct sim_builtin *builtin = builtin_find(entry->name);
    int matches = builtin && entry->count == builtin->param_count;
    for (int i = 0; matches && i < entry->count; i++)
        matches = entry->size[i] == builtin->param_size[i];
    function->builtin = matches ? builtin : builtin_uncomputed();
    function->count = (uint32_t)(entry->count < SIM_MAX_PARAMS ? entry->count : SIM_MAX_PARAMS);
    for (uint32_t i = 0; i < function->count; i++) {
        function->size[i] = (uint8_t)entry->size[i];
        function->offset[i] = (uint16_t)entry->offset[i];
    }
    function->module = module;
    function->next = module->functions;
    module->functions = function;
    function->magic = MAGIC_FUNCTION;
    return function;
}

static void add_global(struct sim_module *module, const char *name, size_t bytes) {
    struct sim_global *global = name[0] && bytes ? calloc(1, sizeof *global) : NULL;
    if (!global)
        return;
    snprintf(global->name, sizeof global->name, "%s", name);
    global->bytes = bytes;
    global->next = module->globals;
    module->globals = global;
}

static void add_from_ptx(struct sim_module *module, const char *image) {
    struct ptx_entry entry;
    for (const char *text = image; (text = ptx_next_entry(text, &entry));)
        add_function(module, &entry);
    char name[SIM_MAX_NAME];
    size_t bytes;
    for (const char *text = image; (text = ptx_next_global(text, name, &bytes));)
        add_global(module, name, bytes);
}

/* The parameters of a kernel in a cubin are unknown, and a launch that is not computed needs none. */
static void add_from_cubin(struct sim_module *module, const void *image) {
    struct cubin_symbol symbol;
    for (size_t index = 0; cubin_next(image, &index, &symbol);) {
        struct ptx_entry entry = {.count = 0};
        snprintf(entry.name, sizeof entry.name, "%s", symbol.name);
        if (symbol.is_entry)
            add_function(module, &entry);
        else
            add_global(module, symbol.name, symbol.bytes);
    }
}

static void unload(struct sim_module *module);

/* Documentation of cuLibraryLoadData: a library is loaded into all contexts, present and future. sim.lock is held. */
static CUresult load_eagerly(struct sim_module *module) {
    CUresult result = CUDA_SUCCESS;
    if (module->context)
        return code_load(module, module->context);
    for (struct sim_context *context = sim.contexts; context && !result; context = context->next)
        result = code_load(module, context);
    return result;
}

static int is_machine_code(const char *image) {
    static const char *const magics[] = {"\177ELF", "\x50\xed\x55\xba", "\xb1\x43\x62\x46"}; /* cubin, fatbins */
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (memcmp(image, magics[i], 4) == 0)
            return 1;
    return 0;
}

static CUresult load(struct sim_context *context, const char *image, CUmodule *out) {
    if (!image || !out)
        return CUDA_ERROR_INVALID_VALUE;
    int is_cubin = sim.params.runs_any && cubin_is(image);
    if (!is_cubin && is_machine_code(image))
        return CUDA_ERROR_NO_BINARY_FOR_GPU; /* a simulated device cannot compute it */
    if (!is_cubin && !ptx_is_text(image))
        return CUDA_ERROR_INVALID_PTX;
    if (context && !atomic_load(&sim.capture_count))
        context_synchronize(context); /* as measured on an H200, which says nothing about captures */
    struct sim_module *module = object_get(MAGIC_MODULE, sizeof *module);
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(module, 0, sizeof *module);
    module->context = context ? context_of_memory(context) : NULL; /* a library has none */
    if (is_cubin)
        add_from_cubin(module, image);
    else
        add_from_ptx(module, image);
    module->magic = MAGIC_MODULE;
    pthread_mutex_lock(&sim.lock);
    CUresult result = code_is_lazy() ? CUDA_SUCCESS : load_eagerly(module);
    if (!result) {
        module->next = modules;
        modules = module;
        *out = module;
    }
    pthread_mutex_unlock(&sim.lock);
    if (result)
        unload(module);
    return result;
}

static void unload(struct sim_module *module) {
    module->magic = 0;
    code_unload(module);
    while (module->functions) {
        struct sim_function *next = module->functions->next;
        object_put(module->functions, MAGIC_FUNCTION);
        module->functions = next;
    }
    while (module->globals) {
        struct sim_global *next = module->globals->next;
        if (module->globals->address)
            alloc_free(module->globals->address, 1u << ALLOC_PLAIN);
        free(module->globals);
        module->globals = next;
    }
    object_put(module, MAGIC_MODULE);
}

static void unlink_and_unload(struct sim_module *module) {
    pthread_mutex_lock(&sim.lock);
    for (struct sim_module **link = &modules; *link; link = &(*link)->next)
        if (*link == module) {
            *link = module->next;
            break;
        }
    pthread_mutex_unlock(&sim.lock);
    unload(module);
}

CUresult module_begin_context(struct sim_context *context) {
    CUresult result = CUDA_SUCCESS;
    for (struct sim_module *module = code_is_lazy() ? NULL : modules; module && !result; module = module->next)
        if (!module->context)
            result = code_load(module, context);
    if (result)
        module_end_context(context);
    return result;
}

void module_end_context(struct sim_context *context) {
    for (struct sim_module **link = &modules; *link;) {
        struct sim_module *module = *link;
        if (module->context == context) {
            *link = module->next;
            unload(module);
        } else {
            code_end_context(module, context);
            link = &module->next;
        }
    }
}

static CUresult load_file(struct sim_context *context, const char *path, CUmodule *out) {
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    char *image = size > 8 ? calloc(1, (size_t)size + 1) : NULL; /* PTX text ends with a zero byte */
    rewind(file);
    int is_read = image && fread(image, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    CUresult result = is_read ? load(context, image, out) : CUDA_ERROR_INVALID_IMAGE;
    free(image);
    return result;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    return result ? result : load(context, image, out);
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(out, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
    return cuModuleLoadData(out, image);
}

CUresult cuModuleLoad(CUmodule *out, const char *path) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    return result ? result : load_file(context, path, out);
}

CUresult cuModuleUnload(CUmodule module) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!module_is_valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((result = capture_check_unsafe()))
        return result;
    context_synchronize(context);
    unlink_and_unload(module);
    return CUDA_SUCCESS;
}

static CUresult find_function(CUfunction *out, struct sim_module *module, const char *name) {
    for (struct sim_function *function = module->functions; function; function = function->next)
        if (strcmp(function->name, name) == 0)
            return *out = function, CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}

/* CUDA programming guide, "Lazy Loading": a module takes memory when the program gets a function of the module. */
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    SIM_ENTER();
    if (!module_is_valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = code_load_here(module);
    return result ? result : find_function(out, module, name);
}

CUresult cuLibraryGetKernel(CUfunction *out, CUmodule library, const char *name) {
    SIM_ENTER();
    if (!module_is_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    return out && name ? find_function(out, library, name) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
    SIM_ENTER();
    if (!module_is_valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = 0;
    for (struct sim_function *function = module->functions; function; function = function->next)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!module_is_valid(module) || !name)
        return CUDA_ERROR_INVALID_HANDLE;
    for (struct sim_global *global = module->globals; global; global = global->next) {
        if (strcmp(global->name, name))
            continue;
        struct sim_alloc *alloc;
        if (!global->address) {
            if ((result = alloc_new(context, ALLOC_PLAIN, global->bytes, 0, &alloc)))
                return result;
            memset((void *)alloc->base, 0, alloc->size);
            global->address = alloc->base;
        }
        if (address)
            *address = global->address;
        if (bytes)
            *bytes = global->bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetLoadingMode(int *mode) {
    SIM_ENTER();
    if (!mode) /* documentation of cuModuleGetLoadingMode, its results */
        return CUDA_ERROR_INVALID_VALUE;
    *mode = code_is_lazy() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUmodule *library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                           int *options, void **values, unsigned count) {
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    SIM_ENTER();
    return load(NULL, code, library);
}

CUresult cuLibraryLoadFromFile(CUmodule *library, const char *path, int *jit, void **jit_values, unsigned jit_count,
                               int *options, void **values, unsigned count) {
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    SIM_ENTER();
    return load_file(NULL, path, library);
}

CUresult cuLibraryUnload(CUmodule library) {
    SIM_ENTER();
    if (!module_is_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    unlink_and_unload(library);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUmodule library) {
    SIM_ENTER();
    if (!module_is_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    *module = library;
    return code_load_here(library);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule library, const char *name) {
    SIM_ENTER();
    if (!module_is_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = code_load_here(library);
    return result ? result : cuModuleGetGlobal_v2(address, bytes, library, name);
}
