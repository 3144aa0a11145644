/* Library with an exit handler that waits for the test, and a second one that calls the driver. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *fifo;
static int (*memset_of_driver)(unsigned long long, unsigned char, size_t);

static void hold(void) {
    char byte;
    int file;
    dprintf(1, "{\"value\": \"held\"}\n");
    file = open(fifo, O_RDONLY);
    if (file < 0 || read(file, &byte, 1) < 0)
        abort();
}

/* Hold the exit until the test has closed the other end of the FIFO. */
void hold_exit(const char *path) {
    fifo = strdup(path);
    atexit(hold);
}

static void call(void) {
    dprintf(1, "{\"value\": %d}\n", memset_of_driver(0, 0, 1));
}

/* Call cuMemsetD8 at the exit, and report its result. */
void call_at_exit(int (*function)(unsigned long long, unsigned char, size_t)) {
    memset_of_driver = function;
    atexit(call);
}
