/* Descriptors of the shim, whose numbers lie in the program's descriptor table. A daemonising program may close all
 * of them, and its own files may get the numbers. So the shim keeps the identity of each, and checks it before each
 * read, write, lock or close. */
#include "base/base.h"

#include <sys/stat.h>
#include <unistd.h>

#define MAX_FDS (3 * MAX_DEVICES)

static struct {
    pthread_mutex_t lock;
    int count;
    struct owned {
        int number;
        dev_t device;
        ino_t inode; /* pipes, sockets, memory and files each have their own */
    } owned[MAX_FDS];
} fds = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool fd_identity_matches(const struct owned *owned) {
    struct stat status;
    return fstat(owned->number, &status) == 0 && status.st_ino == owned->inode && status.st_dev == owned->device;
}

static struct owned *find(int number) {
    for (int i = 0; i < fds.count; i++)
        if (fds.owned[i].number == number)
            return &fds.owned[i];
    return NULL;
}

int fd_own(int number) {
    struct stat status;
    if (number < 0 || fstat(number, &status) != 0)
        return number;
    pthread_mutex_lock(&fds.lock);
    struct owned *owned = find(number);
    if (!owned && fds.count < MAX_FDS)
        owned = &fds.owned[fds.count++];
    if (owned)
        *owned = (struct owned){number, status.st_dev, status.st_ino};
    pthread_mutex_unlock(&fds.lock);
    return number;
}

bool fd_is_ours(int number) {
    pthread_mutex_lock(&fds.lock);
    struct owned *owned = find(number);
    bool ours = owned && fd_identity_matches(owned);
    pthread_mutex_unlock(&fds.lock);
    return ours;
}

void fd_close(int number) {
    pthread_mutex_lock(&fds.lock);
    struct owned *owned = find(number);
    if (owned) {
        if (fd_identity_matches(owned))
            close(number);
        *owned = fds.owned[--fds.count];
    }
    pthread_mutex_unlock(&fds.lock);
}

bool all_fds_are_ours(void) {
    bool ours = true;
    pthread_mutex_lock(&fds.lock);
    for (int i = 0; i < fds.count && ours; i++)
        ours = fd_identity_matches(&fds.owned[i]);
    pthread_mutex_unlock(&fds.lock);
    return ours;
}

void fds_close_all(void) {
    while (fds.count > 0)
        fd_close(fds.owned[0].number);
}

void fds_after_fork(void) {
    pthread_mutex_init(&fds.lock, NULL);
    fds_close_all();
}
