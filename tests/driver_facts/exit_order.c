/* Program that calls the driver in two exit handlers, one older and one younger than the driver's initialisation, and
 * prints the results. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int (*count_devices)(int *);

static void report(const char *handler) {
    int count;
    printf("%s %d\n", handler, count_devices(&count));
}

static void older(void) {
    report("older");
}

static void younger(void) {
    report("younger");
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    count_devices = driver ? (int (*)(int *))dlsym(driver, "cuDeviceGetCount") : NULL;
    if (!init || !count_devices || atexit(older) || init(0) || atexit(younger))
        return 1;
    return 0;
}
