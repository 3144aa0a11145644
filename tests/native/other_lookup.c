/* Library whose dlsym leads past the shim, as that of another preloaded library may. With PER_PROCESS, its dlsym leads
 * to a function of the shim, but to the per-process form in place of the per-thread form. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *(*lookup)(void *handle, const char *name);

void *dlsym(void *handle, const char *name) {
    void *library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    lookup real = (lookup)dlvsym(library, "dlsym", "GLIBC_2.34");
    if (!real)
        return (void *)0;
#ifdef PER_PROCESS
    char form[64];
    const char *end = strstr(name, "_ptsz");
    library = dlopen("libgpushare.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        real = (lookup)real(library, "dlsym");
    if (end) {
        snprintf(form, sizeof form, "%.*s", (int)(end - name), name);
        name = form;
    }
#endif
    return real(handle, name);
}
