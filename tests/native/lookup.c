/* Program that looks a driver function up in several ways, and prints, as JSON, the library of each answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern int cuInit(unsigned flags), cuLaunchKernel(void), cuGetExportTable(const void **table, const void *id);
typedef int (*get_1)(const char *, void **, int, uint64_t);
typedef int (*get_2)(const char *, void **, int, uint64_t, int *);

static const char *separator = "{";

static void report(const char *what, const void *function) {
    Dl_info info;
    const char *name = "";
    if (function && dladdr(function, &info) && info.dli_fname) {
        name = strrchr(info.dli_fname, '/');
        name = name ? name + 1 : info.dli_fname;
    }
    printf("%s\"%s\": \"%s\"", separator, what, name);
    separator = ", ";
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *function = NULL;
    const void *table = NULL;
    int status;
    /* The program's own address of a function may be an entry of its linkage table: ask where calls go instead. */
    report("link", dlsym(NULL, "cuLaunchKernel"));
    if (cuInit(0) != 0)
        return 1;
    report("dlsym", dlsym(driver, "cuLaunchKernel"));
    report("dlsym default", dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2"));
    report("dlsym twin", dlsym(driver, "cuMemcpyHtoD_v2_ptds"));
    report("not hooked", dlsym(driver, "cuCtxSynchronize"));
    report("next", dlsym(RTLD_NEXT, "cuCtxSynchronize"));
    report("unknown", dlsym(driver, "cuNoSuchFunction"));
    report("null name survives", dlsym(driver, ""));
    get_1 one = (get_1)dlsym(driver, "cuGetProcAddress");
    get_2 two = (get_2)dlsym(driver, "cuGetProcAddress_v2");
    if (one("cuLaunchKernel", &function, 11030, 0) == 0)
        report("getproc 1", function);
    if (two("cuLaunchKernel", &function, 12000, 2, &status) == 0)
        report("getproc 2", function);
    if (two("cuGetProcAddress", &function, 12000, 0, &status) == 0)
        report("getproc of getproc", function);
    if (two("cuGetProcAddress", &function, 11030, 0, &status) == 0)
        report("getproc of getproc, old", function);
    cuGetExportTable(&table, "0123456789abcdef");
    printf("%s\"export table\": \"passed\"}\n", separator);
    return 0;
}
