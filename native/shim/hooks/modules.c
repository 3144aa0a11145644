/* Hooks on the end of code, which must be forgotten before another function can get the handle of one that ends. */
#include "hooks/hooks.h"

CUresult hook_cuModuleUnload(CUmodule module) {
    loaded_functions_forget(NULL);
    return REAL(cuModuleUnload)(module);
}

CUresult hook_cuLibraryUnload(CUlibrary library) {
    loaded_functions_forget(NULL);
    return REAL(cuLibraryUnload)(library);
}
