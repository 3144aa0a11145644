/* Turn lock under processes that enter and leave turns as fast as possible, while some are killed and some stopped.
 * The arguments are the lock files of two devices and seconds.
 * On a busy machine the program runs longer, until some processes have been killed and some stopped.
 * The program prints JSON with the number of times that a device had two turns at work (violations).
 * `free` is 1 if the devices can be entered after all processes have left. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/page.h"
#include "agent/turn_lock.h"

#define WORKERS 9
#define TURNS 3
#define DEVICES 2
#define CHECKS 3
#define MIN_KILLS 5
#define MIN_STOPS 5

static struct {
    _Atomic int turn[DEVICES][WORKERS]; /* turn at work, or 0 */
    _Atomic int rests[WORKERS];
    _Atomic int doomed[WORKERS]; /* about to be killed, so that its entries in `turn` may outlast its locks */
    _Atomic int end;
    _Atomic unsigned long tries, entered, violations;
} *shared;

static const char *const *paths;

static void open_all(int *files) {
    for (int device = 0; device < DEVICES; device++)
        files[device] = open(paths[device], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

static uint64_t number_of(int turn) {
    return GPUSHARE_FIRST_TURN + (1ull << 40) + (uint64_t)turn;
}

static void check(int device, int turn) {
    for (int other = 0; other < WORKERS; other++) {
        if (shared->doomed[other])
            continue;
        int found = shared->turn[device][other];
        if (found && found != turn)
            shared->violations++;
    }
}

static void work(int worker) {
    unsigned seed = (unsigned)getpid();
    int files[DEVICES], turn = 1 + worker % TURNS;
    open_all(files);
    while (!shared->end) {
        int device = rand_r(&seed) % DEVICES, count = device == 0 && rand_r(&seed) % 2 ? DEVICES : 1;
        shared->tries++;
        if (turn_enter(files + device, count, number_of(turn), false) == TURN_ENTERED) {
            shared->entered++;
            for (int i = device; i < device + count; i++)
                shared->turn[i][worker] = turn;
            for (int i = 0; i < CHECKS * count; i++)
                check(device + i % count, turn);
            for (int i = device; i < device + count; i++)
                shared->turn[i][worker] = 0;
            turn_leave(files + device, count, number_of(turn));
        }
        if (rand_r(&seed) % 8 == 0)
            usleep(rand_r(&seed) % 64);
    }
    shared->rests[worker] = 1;
    for (;;)
        pause();
}

static pid_t start(int worker) {
    pid_t pid = fork();
    if (pid == 0)
        work(worker);
    return pid;
}

static void kill_worker(pid_t pid, int worker) {
    shared->doomed[worker] = 1;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    for (int device = 0; device < DEVICES; device++)
        shared->turn[device][worker] = 0;
    shared->doomed[worker] = 0;
}

int main(int count, char **arguments) {
    if (count != DEVICES + 2)
        return 2;
    paths = (const char *const *)arguments + 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int files[DEVICES], kills = 0, stops = 0;
    pid_t pids[WORKERS];
    open_all(files);
    for (int worker = 0; worker < WORKERS; worker++)
        pids[worker] = start(worker);
    unsigned seed = 1;
    time_t end = time(NULL) + atoi(arguments[DEVICES + 1]);
    while (time(NULL) < end || kills < MIN_KILLS || stops < MIN_STOPS) {
        usleep(3000);
        int worker = rand_r(&seed) % WORKERS;
        if (rand_r(&seed) % 2) {
            kill(pids[worker], SIGSTOP);
            usleep(500);
            kill(pids[worker], SIGCONT);
            stops++;
        } else {
            kill_worker(pids[worker], worker);
            pids[worker] = start(worker);
            kills++;
        }
    }
    shared->end = 1;
    for (int worker = 0; worker < WORKERS; worker++)
        while (!shared->rests[worker])
            usleep(1000);
    int is_free = turn_enter(files, DEVICES, number_of(TURNS + 1), false) == TURN_ENTERED;
    for (int worker = 0; worker < WORKERS; worker++)
        kill_worker(pids[worker], worker);
    printf("{\"tries\": %lu, \"entered\": %lu, \"kills\": %d, \"stops\": %d, \"violations\": %lu, \"free\": %d}\n",
           shared->tries, shared->entered, kills, stops, shared->violations, is_free);
    return 0;
}
