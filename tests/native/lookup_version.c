/* Program that prints, as JSON, the exported symbol that cuGetProcAddress returns for each argument. An argument is
 * "NAME VERSION FLAGS". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    if (!get || !init || init(0))
        return 1;
    printf("{");
    for (int i = 1; i < argc; i++) {
        char name[128];
        int version, flags, status;
        void *function = NULL;
        Dl_info info = {0};
        if (sscanf(argv[i], "%127s %d %d", name, &version, &flags) != 3)
            return 2;
        if (get(name, &function, version, (uint64_t)flags, &status) == 0 && function)
            dladdr(function, &info);
        printf("%s\"%s\": \"%s\"", i > 1 ? ", " : "", argv[i], info.dli_sname ? info.dli_sname : "");
    }
    printf("}\n");
    return 0;
}
