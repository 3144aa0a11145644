/* The devices' lock files and bells, and the turn that this process is in by them (turn_lock.c).
 *
 * A mapping of each lock file, without access and not inherited by children, keeps the locks of a turn when the program
 * closes all descriptors, as daemons do. New descriptors then enter the same turn, and the mapping is removed. */
#include "agent/agent.h"
#include "agent/turn_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLL_INTERVAL_NS (1000 * NS_PER_MS)
#define MAPPING_BYTES 4096

struct lock_file {
    char uuid[GPUSHARE_UUID_BYTES];
    int file, bell; /* -1: not open */
    void *mapping;  /* of `file`; NULL: none */
};

static struct {
    struct lock_file files[MAX_DEVICES];
    int count;
    uint64_t turn;                     /* the turn that this process is in; 0: none */
    struct lock_file *in[MAX_DEVICES]; /* in the order of their UUIDs */
    int in_count;
    void *old[MAX_DEVICES]; /* mappings of replaced files, which keep the turn */
    int old_count;
    uint64_t polled_at;
} locks;

static const char *folder(void) {
    static char path[512]; /* set once, because the agent calls this later */
    if (!*path) {
        const char *given = getenv("GPUSHARE_LOCK_DIR");
        snprintf(path, sizeof path, "%s", given && *given ? given : "/dev/shm/gpushare");
    }
    return path;
}

static bool path_of(const char *uuid, const char *ending, char *path, size_t room) {
    return (size_t)snprintf(path, room, "%s/%s.%s", folder(), uuid, ending) < room;
}

/* For every user, whatever the umask of the process is. */
static void open_to_all(int file) {
    if (file >= 0)
        fchmod(file, 0666);
}

static int open_lock(const char *path) {
    /* First without O_CREAT: in a sticky folder Linux may forbid O_CREAT on another user's file. */
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 && errno == EACCES)
        file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 && errno == ENOENT) {
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        open_to_all(file);
        if (file < 0 && errno == EEXIST)
            file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    return file;
}

/* Without a bell turns pass more slowly. */
static int open_bell(const char *path) {
    bool made = mkfifo(path, 0666) == 0;
    int file = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    struct stat status;
    if (file >= 0 && (fstat(file, &status) != 0 || !S_ISFIFO(status.st_mode))) {
        close(file);
        return -1;
    }
    if (made)
        open_to_all(file);
    return file;
}

static void close_file(struct lock_file *lock) {
    fd_close(lock->file);
    fd_close(lock->bell);
    lock->file = lock->bell = -1;
}

static bool open_file(struct lock_file *lock) {
    char path[1024];
    if (mkdir(folder(), 01777) == 0)
        chmod(folder(), 01777);
    if (path_of(lock->uuid, "bell", path, sizeof path))
        lock->bell = fd_own(open_bell(path));
    if (path_of(lock->uuid, "lock", path, sizeof path))
        lock->file = fd_own(open_lock(path));
    if (lock->file < 0) {
        log_message(LOG_INFO, "could not open %s: %s", path, strerror(errno));
        close_file(lock); /* the next try opens the bell again */
        return false;
    }
    lock->mapping = mmap(NULL, MAPPING_BYTES, PROT_NONE, MAP_SHARED, lock->file, 0);
    if (lock->mapping == MAP_FAILED)
        lock->mapping = NULL;
    else
        madvise(lock->mapping, MAPPING_BYTES, MADV_DONTFORK);
    return true;
}

static void drop(void **mapping) {
    if (*mapping)
        munmap(*mapping, MAPPING_BYTES);
    *mapping = NULL;
}

static struct lock_file *find(const char *uuid) {
    struct lock_file *lock = NULL;
    for (int i = 0; i < locks.count && !lock; i++)
        if (strncmp(locks.files[i].uuid, uuid, GPUSHARE_UUID_BYTES) == 0)
            lock = &locks.files[i];
    if (!lock && locks.count < MAX_DEVICES) {
        lock = &locks.files[locks.count++];
        *lock = (struct lock_file){.file = -1, .bell = -1};
        snprintf(lock->uuid, sizeof lock->uuid, "%s", uuid);
    }
    return lock && (lock->file >= 0 || open_file(lock)) ? lock : NULL;
}

/* Return the lock file of entry `index` of the client page's table, which the coordinator may extend. */
static struct lock_file *of_device(int index) {
    char uuid[GPUSHARE_UUID_BYTES];
    if (index >= (int)PAGE_LOAD(shim.client->device_count))
        return NULL;
    memcpy(uuid, shim.client->devices[index], sizeof uuid);
    uuid[sizeof uuid - 1] = 0;
    return *uuid && !strchr(uuid, '/') ? find(uuid) : NULL;
}

static int by_uuid(const void *a, const void *b) {
    return strcmp((*(struct lock_file *const *)a)->uuid, (*(struct lock_file *const *)b)->uuid);
}

/* Find the lock files of all the devices, in one order for all processes so that two do not refuse each other for
 * ever. Return their number; 0: one is missing. */
static int gather(uint64_t devices, struct lock_file **found) {
    int count = 0;
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (!(devices >> i & 1))
            continue;
        if (!(found[count++] = of_device(i)))
            return 0;
    }
    qsort(found, (size_t)count, sizeof *found, by_uuid);
    return count;
}

static void entered_descriptors(int *files) {
    for (int i = 0; i < locks.in_count; i++)
        files[i] = locks.in[i]->file;
}

bool locks_open(uint64_t devices) {
    struct lock_file *found[MAX_DEVICES];
    return gather(devices, found) > 0;
}

bool locks_enter(uint64_t turn, uint64_t devices, bool join) {
    int files[MAX_DEVICES];
    locks.in_count = gather(devices, locks.in);
    entered_descriptors(files);
    if (!locks.in_count || turn_enter(files, locks.in_count, turn, join) != TURN_ENTERED)
        return false;
    locks.turn = turn;
    return true;
}

static void drop_old(void) {
    while (locks.old_count > 0)
        drop(&locks.old[--locks.old_count]);
}

/* Locks of a descriptor that the program has closed end with its mapping; the agent opens a new one later. */
void locks_leave(void) {
    for (int i = locks.in_count; locks.turn && i-- > 0;)
        if (fd_is_ours(locks.in[i]->file))
            turn_leave(&locks.in[i]->file, 1, locks.turn);
        else
            drop(&locks.in[i]->mapping);
    locks.turn = 0;
    drop_old();
}

bool locks_have_others(uint64_t devices, uint64_t turn) {
    struct lock_file *found[MAX_DEVICES];
    bool others = false;
    for (int i = gather(devices, found); i-- > 0 && !others;)
        others = turn_has_others(found[i]->file, turn);
    return others;
}

void locks_show_waiting(uint64_t devices, bool waits) {
    struct lock_file *found[MAX_DEVICES];
    for (int i = gather(devices, found); i-- > 0;)
        if (fd_is_ours(found[i]->file))
            turn_show_waiting(found[i]->file, waits);
}

void locks_ring(uint64_t devices) {
    struct lock_file *found[MAX_DEVICES];
    for (int i = gather(devices, found); i-- > 0;)
        if (fd_is_ours(found[i]->bell) && write(found[i]->bell, "", 1) < 0)
            continue; /* full: the bell rings already */
}

int locks_bell(uint64_t devices) {
    struct lock_file *found[MAX_DEVICES];
    return gather(devices, found) == 1 ? found[0]->bell : -1;
}

/* One read, because another user may write faster than the agent reads. */
bool locks_drain_bell(int bell) {
    char rings[4096];
    return fd_is_ours(bell) && read(bell, rings, sizeof rings) > 0;
}

/* --- replaced files ----------------------------------------------------------------------------------------------- */

/* Open new descriptors of all files. A turn goes on by the new ones, or by the old mappings where the new ones are
 * refused. */
static bool reopen_files(void) {
    bool opened = true;
    for (int i = 0; i < locks.count; i++) {
        struct lock_file *lock = &locks.files[i];
        if (locks.turn && lock->mapping && locks.old_count < MAX_DEVICES) {
            locks.old[locks.old_count++] = lock->mapping;
            lock->mapping = NULL;
        }
        drop(&lock->mapping);
        close_file(lock);
        opened = open_file(lock) && opened;
    }
    int files[MAX_DEVICES];
    entered_descriptors(files);
    if (locks.turn && opened && turn_enter(files, locks.in_count, locks.turn, false) == TURN_ENTERED)
        drop_old();
    return opened;
}

static bool is_replaced(const struct lock_file *lock) {
    struct stat here, there;
    char path[1024];
    return fd_is_ours(lock->file) && path_of(lock->uuid, "lock", path, sizeof path) && fstat(lock->file, &here) == 0 &&
           (stat(path, &there) != 0 || here.st_ino != there.st_ino || here.st_dev != there.st_dev);
}

bool locks_poll(uint64_t now) {
    bool replaced = false;
    if (now < locks.polled_at + POLL_INTERVAL_NS)
        return false;
    locks.polled_at = now;
    for (int i = 0; i < locks.count && !replaced; i++)
        replaced = is_replaced(&locks.files[i]);
    if (!replaced)
        return false;
    log_message(LOG_INFO, "reopen the lock files, because one in %s was replaced", folder());
    reopen_files();
    return true;
}

bool locks_reopen(void) {
    return reopen_files();
}

void locks_close(void) {
    locks_leave();
    for (int i = 0; i < locks.count; i++) {
        drop(&locks.files[i].mapping);
        close_file(&locks.files[i]);
    }
}

void locks_after_fork(void) {
    locks.count = locks.in_count = locks.old_count = 0; /* the files are closed, and the mappings were not inherited */
    locks.turn = 0;
}
