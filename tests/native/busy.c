/* busy PTX THREADS NANOSECONDS: threads, two to a stream, that launch so long a spin each as fast as they can, until the
 * end of standard input; exit status 1 if a launch fails. SIGUSR1 holds a thread up for a tenth of a second, wherever in the
 * driver it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long u64;

static int (*cuInit)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const void *),
    (*get_function)(void **, void *, const char *), (*create)(void **, unsigned), (*synchronize)(void),
    (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static void *context, *spin;
static u64 nanoseconds;
static _Atomic int stop, failed;

static void hold_up(int number) {
    (void)number;
    nanosleep(&(struct timespec){0, 100000000}, NULL);
}

static void *run(void *stream) {
    void *arguments[] = {&nanoseconds};
    failed |= set_current(context);
    while (!stop && !failed)
        failed |= launch(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
    return NULL;
}

int main(int argc, char **argv) {
    static char ptx[65536];
    pthread_t threads[64];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *module, *stream = NULL;
    FILE *file = argc == 4 ? fopen(argv[1], "r") : NULL;
    if (!driver || !file || !fread(ptx, 1, sizeof ptx - 1, file))
        return 2;
    int count = atoi(argv[2]);
    nanoseconds = strtoull(argv[3], NULL, 10);
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&load = dlsym(driver, "cuModuleLoadData");
    *(void **)&get_function = dlsym(driver, "cuModuleGetFunction");
    *(void **)&create = dlsym(driver, "cuStreamCreate");
    *(void **)&synchronize = dlsym(driver, "cuCtxSynchronize");
    *(void **)&launch = dlsym(driver, "cuLaunchKernel");
    /* Before anybody can know of this process. */
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = hold_up, .sa_flags = SA_RESTART}, NULL);
    if (cuInit(0) || retain(&context, 0) || set_current(context) || load(&module, ptx) ||
        get_function(&spin, module, "spin"))
        return 3;
    for (int i = 0; i < count; i++) {
        if (i % 2 == 0 && create(&stream, 1))
            return 4;
        pthread_create(&threads[i], NULL, run, stream);
    }
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &held, NULL);
    while (getchar() != EOF)
        ;
    stop = 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return failed || synchronize() ? 1 : 0;
}
