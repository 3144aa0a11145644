/* Program whose threads make some launches and end, over and over until the end of standard input.
 * Usage: context_teardown PTX THREADS STACK_KIB LAUNCHES, with THREADS threads at a time on stacks of STACK_KIB, and
 * LAUNCHES launches in each thread. The program prints the number of all launches.
 * SIGUSR1 delays a thread by a tenth of a second, wherever in the driver the thread is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAX_THREADS 512

static int (*cuInit)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const void *),
    (*get_function)(void **, void *, const char *), (*synchronize)(void),
    (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static void *context, *spin;
static int launches_each;
static sigset_t usr1;
static _Atomic int launches, failed;

static void delay(int number) {
    (void)number;
    nanosleep(&(struct timespec){0, 100000000}, NULL);
}

static void *run(void *unused) {
    unsigned long long nothing = 0;
    void *arguments[] = {&nothing};
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    failed |= set_current(context);
    for (int i = 0; i < launches_each && !failed; i++) {
        failed |= launch(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
        launches++;
    }
    return unused;
}

static int is_over(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) != 0;
}

int main(int argc, char **argv) {
    static char ptx[65536];
    static pthread_t threads[MAX_THREADS];
    pthread_attr_t attributes;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *module;
    FILE *file = argc == 5 ? fopen(argv[1], "r") : NULL;
    if (!driver || !file || !fread(ptx, 1, sizeof ptx - 1, file))
        return 2;
    int count = atoi(argv[2]);
    launches_each = atoi(argv[4]);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = delay, .sa_flags = SA_RESTART}, NULL);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    pthread_attr_init(&attributes);
    if (count > MAX_THREADS || pthread_attr_setstacksize(&attributes, (size_t)atoi(argv[3]) << 10))
        return 3;
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&load = dlsym(driver, "cuModuleLoadData");
    *(void **)&get_function = dlsym(driver, "cuModuleGetFunction");
    *(void **)&synchronize = dlsym(driver, "cuCtxSynchronize");
    *(void **)&launch = dlsym(driver, "cuLaunchKernel");
    if (cuInit(0) || retain(&context, 0) || set_current(context) || load(&module, ptx) ||
        get_function(&spin, module, "spin"))
        return 4;
    while (!is_over()) {
        for (int i = 0; i < count; i++)
            if (pthread_create(&threads[i], &attributes, run, NULL))
                return 5;
        for (int i = 0; i < count; i++)
            pthread_join(threads[i], NULL);
    }
    printf("%d\n", launches);
    return failed || synchronize() ? 1 : 0;
}
