/* Lock-file mode: turns without a coordinator.
 *
 * Whoever has the devices' locks has the turn. A client's processes share the open file descriptions of these locks, and
 * the client page: so they have their turn together. What they must agree on they do under byte TURN_BYTE of the client
 * page; a process whose gate is open holds the byte of its slot, in either mode, so that the last one out is known; one
 * that is in contact with a coordinator holds the byte CONTACT_BYTE above its slot: the locks are the coordinator's then.
 * All are record locks, which the kernel drops when a process ends. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTACT_BYTE GPUSHARE_SLOTS /* plus the slot */
#define TURN_BYTE (2 * GPUSHARE_SLOTS)
#define ASK_NS (5 * MS)     /* between two tries to get the locks */
#define CHANCE_NS (20 * MS) /* others may have them first */
#define STUCK_NS (100 * MS) /* a drain that takes longer, while a thread waits, may wait for that thread */
#define LEAST_QUANTUM_NS (10 * MS)
#define SLICE_NS (50 * MS) /* what the gate opens for then */
#define STEPS 16           /* so many slices let through one call of each thread; after them comes a whole one */
#define AGAIN_NS (20 * MS) /* between steps, and after a slice that has helped */

static struct {
    _Atomic bool active;    /* report.mode says so too */
    bool turn;              /* our gate is open, or draining, by a turn that ends here */
    bool holds, in_contact; /* our slot's bytes are locked */
    bool waits;             /* and others are told so */
    uint32_t slot, contact_slot;
    uint64_t deadline, closed_at, next_try;
    uint64_t waited_since;      /* a thread waits for our drain; 0: none */
    uint32_t slices, slices_of; /* given so far in which turn of the client */
    int others;                 /* running when this slice for their drains began; 0: it is no such slice */
    bool helped;                /* the last one let another process drain */
    int order[MAX_DEVICES];     /* of the devices, by UUID: who takes several locks takes them in this order */
} own;

/* False also where the program has closed our descriptors: under that number there may be a file of its own by now. */
static bool record_lock(short type, off_t byte) {
    if (!file_is_ours(shim.client_file))
        return false;
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(shim.client_file, F_SETLK, &lock) == 0;
}

/* The first of the bytes from `begin` to before `end` that another process of the client holds, else `end`. */
static off_t held_by_another(off_t begin, off_t end) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = begin, .l_len = end - begin};
    return fcntl(shim.client_file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? lock.l_start : end;
}

/* Does another process of the client hold one of the bytes that begin there, a slot each? */
static bool another_holds(off_t first) {
    return held_by_another(first, first + GPUSHARE_SLOTS) < first + GPUSHARE_SLOTS;
}

bool lockmode_alone(void) {
    return !another_holds(0);
}

static int others_running(void) {
    int count = 0;
    for (off_t at = 0; (at = held_by_another(at, GPUSHARE_SLOTS)) < GPUSHARE_SLOTS; at++)
        count++;
    return count;
}

void lockmode_hold(bool open) {
    uint32_t slot = GET(the_page()->orders.slot) % GPUSHARE_SLOTS;
    if (own.holds && (!open || slot != own.slot))
        record_lock(F_UNLCK, own.slot);
    own.slot = slot;
    own.holds = open && record_lock(F_WRLCK, slot);
}

void lockmode_contact(bool in_contact) {
    uint32_t slot = GET(the_page()->orders.slot) % GPUSHARE_SLOTS;
    if (own.in_contact && (!in_contact || slot != own.contact_slot))
        record_lock(F_UNLCK, CONTACT_BYTE + own.contact_slot);
    own.contact_slot = slot;
    own.in_contact = in_contact && record_lock(F_WRLCK, CONTACT_BYTE + slot);
}

/* --- the devices' lock files ---------------------------------------------------------------------------------------- */

static int open_lock(const char *folder, const char *uuid) {
    char path[1024];
    if ((size_t)snprintf(path, sizeof path, "%s/%s.lock", folder, uuid) >= sizeof path)
        return -1;
    /* First without O_CREAT: in a sticky folder the kernel may forbid that on another user's file. */
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 && errno == EACCES)
        file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 && errno == ENOENT) {
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (file >= 0)
            fchmod(file, 0666); /* for every user, whatever our umask */
        else if (errno == EEXIST)
            file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    return file;
}

static int by_uuid(const void *a, const void *b) {
    return strcmp(shim.devices[*(const int *)a].uuid, shim.devices[*(const int *)b].uuid);
}

bool lockmode_open_files(void) {
    static char folder[512]; /* read once: later it is the agent that comes here */
    const char *given = *folder ? folder : getenv("GPUSHARE_LOCK_DIR");
    if (!*folder)
        snprintf(folder, sizeof folder, "%s", given && *given ? given : "/dev/shm/gpushare");
    if (mkdir(folder, 01777) == 0)
        chmod(folder, 01777);
    for (int i = 0; i < shim.device_count; i++) {
        own.order[i] = i;
        shim.devices[i].lock = file_keep(open_lock(folder, shim.devices[i].uuid));
        if (shim.devices[i].lock < 0) {
            log_line(LOG_INFO, "%s/%s.lock: %s", folder, shim.devices[i].uuid, strerror(errno));
            return false;
        }
    }
    qsort(own.order, (size_t)shim.device_count, sizeof own.order[0], by_uuid);
    return true;
}

static void unlock_devices(int count) {
    while (count > 0)
        flock(shim.devices[own.order[--count]].lock, LOCK_UN);
}

static bool lock_devices(void) {
    for (int i = 0; i < shim.device_count; i++)
        if (flock(shim.devices[own.order[i]].lock, LOCK_EX | LOCK_NB) != 0) {
            unlock_devices(i);
            return false;
        }
    return true;
}

/* A coordinator that has a device ends its turn when others on the host wait for it: it looks for a lock on the first byte of
 * the lock file, of another kind than the devices' (coordinator/neighbours.py). All processes of the client share this one. */
static void say_waits(bool waits) {
    struct flock lock = {.l_type = waits ? F_RDLCK : F_UNLCK, .l_whence = SEEK_SET, .l_len = 1};
    own.waits = waits;
    for (int i = 0; i < shim.device_count; i++)
        if (file_is_ours(shim.devices[i].lock))
            fcntl(shim.devices[i].lock, F_OFD_SETLK, &lock);
}

/* Does the client have them all, shared ones included? A try to lock one for ourselves would give up a shared lock. */
static bool has_locks(void) {
    bool all = true;
    for (int i = 0; all && i < shim.device_count; i++) {
        char path[64], text[512];
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", shim.devices[i].lock);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t bytes = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        text[bytes > 0 ? bytes : 0] = 0;
        all = strstr(text, "FLOCK") != NULL;
    }
    return all;
}

/* --- turns ---------------------------------------------------------------------------------------------------------- */

static void open_gate(uint64_t now, uint64_t deadline, uint32_t how) {
    struct gpushare_page *page = the_page();
    uint32_t epoch = (epoch_of(agent_gate_word()) + 1) % GPUSHARE_GATE_EPOCHS;
    own.turn = true;
    own.deadline = deadline;
    PUT(page->orders.deadline_ns, deadline);
    agent_opens(epoch << GPUSHARE_GATE_EPOCH_SHIFT | how);
    __atomic_store_n(&page->orders.gate, epoch << GPUSHARE_GATE_EPOCH_SHIFT | how, __ATOMIC_RELEASE);
    futex_wake_all(&page->orders.gate);
    log_line(LOG_DEBUG, "lock-file mode: turn %u for %.1f ms", epoch, (double)(deadline - now) / MS);
}

/* How long to wait for a drain that may itself wait for a thread of ours. Doubled with every whole slice that a turn was
 * given in vain: what it lets through must have time to end. */
static uint64_t patience(void) {
    uint32_t turn = GET(shim.client->turn_epoch);
    if (own.slices_of != turn)
        own.slices = 0;
    own.slices_of = turn;
    uint32_t whole = own.slices / (STEPS + 1);
    return own.helped || own.slices % (STEPS + 1) ? AGAIN_NS : STUCK_NS << (whole < 5 ? whole : 5);
}

/* First for the very calls that stand at the gate; if that is not what the device waits for, for more. */
static void open_slice(uint64_t now, int others) {
    bool step = own.slices % (STEPS + 1) < STEPS;
    own.others = others;
    own.helped = false;
    own.slices++;
    if (step)
        open_gate(now, now + AGAIN_NS, GPUSHARE_GATE_STEP);
    else
        open_gate(now, now + SLICE_NS, GPUSHARE_GATE_OPEN);
}

static void close_gate(uint64_t now) {
    struct gpushare_page *page = the_page();
    own.closed_at = now;
    own.waited_since = 0;
    own.others = 0;
    __atomic_store_n(&page->orders.gate, closing_of(agent_gate_word()), __ATOMIC_SEQ_CST);
}

/* The last of the client's processes gives the devices back. */
static bool leave(uint64_t now) {
    if (!record_lock(F_WRLCK, TURN_BYTE))
        return false; /* another process of the client is at it: again in a moment */
    lockmode_hold(false);
    if (!another_holds(0)) {
        PUT(shim.client->turn_began_ns, 0);
        unlock_devices(shim.device_count);
    }
    record_lock(F_UNLCK, TURN_BYTE);
    own.turn = false;
    own.next_try = now + CHANCE_NS;
    return true;
}

static uint64_t quantum(void) {
    uint64_t told = GET(the_page()->orders.quantum_ns);
    return told > LEAST_QUANTUM_NS ? told : LEAST_QUANTUM_NS;
}

static void try_for_turn(uint64_t now) {
    own.next_try = now + ASK_NS;
    if (!record_lock(F_WRLCK, TURN_BYTE))
        return;
    if (another_holds(0)) {
        uint64_t end = GET(shim.client->turn_began_ns) + quantum();
        bool stuck = now > (own.closed_at > end ? own.closed_at : end) + patience();
        if (now < end || stuck)
            lockmode_hold(true);
        if (now < end)
            open_gate(now, end, GPUSHARE_GATE_OPEN);
        else if (stuck) /* it cannot drain: it may wait on the device for work of ours */
            open_slice(now, others_running());
    } else if (lock_devices()) {
        PUT(shim.client->turn_began_ns, now);
        ADD(shim.client->turn_epoch, 1);
        lockmode_hold(true);
        open_gate(now, now + quantum(), GPUSHARE_GATE_OPEN);
    }
    record_lock(F_UNLCK, TURN_BYTE);
}

/* The coordinator has been away for long enough. What it granted last goes on as a turn of ours. */
static void enter(uint64_t now) {
    struct gpushare_page *page = the_page();
    relay_pause(); /* the relay opens no gate in this mode */
    own.active = true;
    relay_go_on();
    uint32_t word = gate_word(page);
    PUT(page->report.mode, GPUSHARE_MODE_LOCK_FILE);
    PUT(page->orders.launch_rate, 0); /* for a neighbour that ran beside us; turns are exclusive now */
    PUT(page->orders.spacing_ppm, 0);
    log_line(LOG_INFO, "no coordinator: turns by the lock files");
    if (is_open(word)) {
        own.turn = true;
        if (!has_locks() && !lock_devices()) /* a coordinator took them from us without a word: it never does */
            own.deadline = now;
        else if (record_lock(F_WRLCK, TURN_BYTE)) {
            if (!GET(shim.client->turn_began_ns))
                PUT(shim.client->turn_began_ns, now);
            own.deadline = GET(shim.client->turn_began_ns) + quantum();
            record_lock(F_UNLCK, TURN_BYTE);
        } else
            own.deadline = now + quantum();
        PUT(page->orders.deadline_ns, own.deadline);
    } else {
        own.turn = true; /* to be left at once, or when drained: the last grant's lock may still be held */
        own.closed_at = now;
    }
}

/* At an open gate: at its deadline, or to see whether the slice has helped. */
static uint64_t look_again(uint64_t now) {
    return own.others && now + MS < own.deadline ? now + MS : own.deadline;
}

uint64_t lockmode_step(uint64_t now) {
    struct gpushare_page *page = the_page();
    uint64_t begin = socket_away_since() + GRACE_NS;
    if (now < begin)
        return begin;
    if (!own.active)
        enter(now);
    uint32_t word = agent_gate_word();
    bool waited_for = GET(page->report.waiting) != 0;
    if (is_open(word)) {
        int others = own.others ? others_running() : 0;
        if (others < own.others) { /* they needed it; what we submit may wait for them in turn */
            own.slices = 0;
            own.helped = true;
            own.deadline = others ? own.deadline : now;
        }
        if (now < own.deadline)
            return look_again(now);
        close_gate(now);
        return now;
    }
    if (is_closing(word) && GET(page->report.drained_epoch) != epoch_of(word)) {
        if (!waited_for || memory_moving()) {
            own.waited_since = 0;
            return NEVER; /* the drain sets the pace */
        }
        if (!own.waited_since)
            own.waited_since = now;
        uint64_t due = own.waited_since + patience() * (own.slices ? 4 : 1); /* who has drained comes first */
        if (now < due)
            return due;
        open_slice(now, 0);
        return own.deadline;
    }
    if (own.turn && !leave(now))
        return now + MS;
    if (!waited_for) {
        if (own.waits)
            say_waits(false);
        return NEVER;
    }
    if (now >= own.next_try) {
        try_for_turn(now);
        say_waits(!own.turn);
    }
    return is_open(gate_word(page)) ? look_again(now) : own.next_try;
}

bool lockmode_idle(uint64_t now) {
    if (!own.active)
        return false;
    close_gate(now);
    return true;
}

bool lockmode_active(void) {
    return own.active;
}

/* Before hello. A client that does not run must not keep the devices locked, for a coordinator knows nothing of locks that
 * an earlier one, or the client itself, has left behind. */
bool lockmode_ready(uint64_t now) {
    if (is_running())
        return true;
    if (own.turn)
        return leave(now);
    if (!another_holds(0) && !another_holds(CONTACT_BYTE))
        unlock_devices(shim.device_count);
    return true;
}

/* A lock that was waited for in vain. */
void lockmode_stray(uint64_t now) {
    relay_pause();
    lockmode_ready(now);
    relay_go_on();
}

/* The client page may be another by now, the slot too. */
void lockmode_end(void) {
    own.active = own.turn = false;
    own.next_try = 0;
    say_waits(false);
    PUT(the_page()->report.mode, GPUSHARE_MODE_COORDINATED);
    PUT(shim.client->turn_began_ns, 0);
    lockmode_hold(own.holds && is_running()); /* it may have drained since hello */
    lockmode_contact(true);
}

void lockmode_after_fork(void) {
    own.active = own.turn = own.holds = own.in_contact = own.waits = false;
    own.next_try = 0;
}
