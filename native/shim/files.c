/* The shim's descriptors. Their numbers lie in a table that is the program's: daemons close all of it, and what is opened
 * next takes the numbers over. So each is remembered with what it stood for, and before anything is written, read, locked
 * or closed under a number it is asked whether that still stands there. */
#include "shim.h"

#include <sys/stat.h>
#include <unistd.h>

#define MOST (3 * MAX_DEVICES)

static struct {
    pthread_mutex_t lock;
    int count;
    struct kept {
        int number;
        dev_t device;
        ino_t inode; /* of pipes, sockets, memory and files alike: one of their own */
    } kept[MOST];
} files = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool stands(const struct kept *kept) {
    struct stat status;
    return fstat(kept->number, &status) == 0 && status.st_ino == kept->inode && status.st_dev == kept->device;
}

static struct kept *find(int number) {
    for (int i = 0; i < files.count; i++)
        if (files.kept[i].number == number)
            return &files.kept[i];
    return NULL;
}

int file_keep(int number) {
    struct stat status;
    if (number < 0 || fstat(number, &status) != 0)
        return number;
    pthread_mutex_lock(&files.lock);
    struct kept *kept = find(number);
    if (!kept && files.count < MOST)
        kept = &files.kept[files.count++];
    if (kept)
        *kept = (struct kept){number, status.st_dev, status.st_ino};
    pthread_mutex_unlock(&files.lock);
    return number;
}

bool file_is_ours(int number) {
    pthread_mutex_lock(&files.lock);
    struct kept *kept = find(number);
    bool ours = kept && stands(kept);
    pthread_mutex_unlock(&files.lock);
    return ours;
}

void file_close(int number) {
    pthread_mutex_lock(&files.lock);
    struct kept *kept = find(number);
    if (kept) {
        if (stands(kept))
            close(number);
        *kept = files.kept[--files.count];
    }
    pthread_mutex_unlock(&files.lock);
}

bool files_are_ours(void) {
    bool ours = true;
    pthread_mutex_lock(&files.lock);
    for (int i = 0; i < files.count && ours; i++)
        ours = stands(&files.kept[i]);
    pthread_mutex_unlock(&files.lock);
    return ours;
}

void files_close_all(void) {
    while (files.count > 0)
        file_close(files.kept[0].number);
}

void files_after_fork(void) {
    pthread_mutex_init(&files.lock, NULL);
    files_close_all();
}
