/* Library whose dlsym leads past the shim, as that of another preloaded library may. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *dlsym(void *handle, const char *name) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void *(*real)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(libc, "dlsym", "GLIBC_2.34");
    return real ? real(handle, name) : (void *)0;
}
