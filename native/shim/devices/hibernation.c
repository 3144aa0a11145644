/* Hibernation: the driver has checkpointed the process, which stays off its device until the program needs the device.
 *
 * Calls of the program wait meanwhile: at the gate if they have a hook there, and otherwise in the locked driver. A call
 * that waits in the driver shows itself nowhere. So the agent watches where the main thread of the program waits. A
 * notebook's main thread waits for messages. If it stays elsewhere, it may wait in the driver, and the process
 * returns. A cell of a notebook is known to the coordinator.
 *
 * A restore without room could never be repeated, and only the coordinator has the figures of the room. So a process
 * without a coordinator waits for one.
 *
 * The agent makes no call of the driver in a hibernated process, and takes no lock that a thread may hold while it waits
 * in the driver. */
#include "coordinator/coordinator.h"
#include "devices/devices.h"
#include "gate/gate.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define WATCH_NS (500 * NS_PER_MS) /* between two looks at the main thread */
#define MIN_LOOKS 3                /* in a row that find the main thread elsewhere, until the process returns */
#define MAX_EXIT_WAIT_NS (5000 * NS_PER_MS)
#define EXIT_POLL_NS (5 * NS_PER_MS)

struct place {
    long call; /* the number of the system call in which the thread waits */
    unsigned long long stack, code;
};

static struct {
    struct place rest; /* of the main thread */
    uint64_t looked_at;
    int looks_elsewhere;
    bool wants_return, is_logged;
} watch;

static _Atomic bool is_ending;

/* Read where the main thread waits. False: it works, or the system does not show it. Source: proc_pid_syscall(5). */
static bool read_place(struct place *place) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)getpid());
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return false;
    text[length] = 0;
    return sscanf(text, "%ld %*s %*s %*s %*s %*s %*s %llx %llx", &place->call, &place->stack, &place->code) == 3;
}

static bool is_at_rest(void) {
    struct place now;
    return read_place(&now) && now.call == watch.rest.call && now.stack == watch.rest.stack &&
           now.code == watch.rest.code;
}

const char *hibernation_obstacle(void) {
    if (atomic_load(&is_ending))
        return "the process ends";
    if (bypassing_libraries())
        return "work of the process may pass the gate";
    if (!read_place(&watch.rest))
        return "the main thread of the program is at work";
    return NULL;
}

void hibernation_begin(uint64_t bytes) {
    watch.looked_at = now_ns();
    watch.looks_elsewhere = 0;
    watch.wants_return = watch.is_logged = false;
    atomic_store(&shim.hibernated_bytes, max_u64(bytes, 1));
    log_message(LOG_INFO, "hibernated, with %s off the device", size_text(bytes).text);
}

void hibernation_end(void) {
    atomic_store(&shim.hibernated_bytes, 0);
    watch.wants_return = false;
    log_message(LOG_INFO, "returned from hibernation");
}

uint64_t hibernation_poll(uint64_t now) {
    if (!is_hibernated())
        return NEVER;
    if (now >= watch.looked_at + WATCH_NS) {
        watch.looked_at = now;
        watch.looks_elsewhere = is_at_rest() ? 0 : watch.looks_elsewhere + 1;
    }
    watch.wants_return =
        watch.wants_return || watch.looks_elsewhere >= MIN_LOOKS || any_thread_in_gate() || atomic_load(&is_ending);
    uint64_t away_since = connection_away_since();
    if ((watch.wants_return || atomic_load(&shim.waiting)) && !watch.is_logged && away_since &&
        now > away_since + STALE_NS) {
        watch.is_logged = true;
        log_message(LOG_ERROR,
                    "This process is off its GPU, and its calls wait until a coordinator finds room for the process. "
                    "No coordinator answers: start one by jupyter gpushare coordinator.");
    }
    return watch.looked_at + WATCH_NS;
}

bool hibernation_wants_return(void) {
    return is_hibernated() && watch.wants_return;
}

/* The driver's own exit handler runs next, and the agent can restore nothing from then on. One checkpointed process has
 * ended as usual on an H200. One trial does not show that no driver waits for its own lock at the end, and such a
 * process would never end. With a coordinator and room the wait takes as long as the return. */
void hibernation_end_before_exit(void) {
    uint64_t end = now_ns() + MAX_EXIT_WAIT_NS;
    atomic_store(&is_ending, true);
    if (is_hibernated())
        agent_wake();
    while (is_hibernated() && now_ns() < end)
        nanosleep(&(struct timespec){.tv_nsec = EXIT_POLL_NS}, NULL);
    if (is_hibernated())
        log_message(LOG_INFO, "end the process although it is hibernated");
}

void hibernation_after_fork(void) {
    atomic_store(&is_ending, false);
    watch = (typeof(watch)){0};
}
