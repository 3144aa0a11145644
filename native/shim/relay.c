/* The relay: a turn that passes from one client to the next by the device's lock itself, without a third process on the
 * way. The coordinator names the next client early: in the page of the one that runs (orders.hand_on: "give the lock up
 * yourself once you have drained") and in the page of the next (orders.carry: "with the lock, this epoch is yours"). There
 * a thread of its own waits for the lock and opens the gate when it comes; the coordinator hears of it afterwards, and
 * grants the very same epoch.
 *
 * This is for one process with one device on either side, which nearly all notebooks are; gangs go by the coordinator.
 *
 * A lock may come when nobody asks for it any more: a stray one. Whoever decides over locks then gives it back: the
 * coordinator, which may be granting it at this moment, or lock-file mode. `relay.lock` is held while the gate is being
 * opened here, and while the agent changes who decides. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#define REST_NS (60000 * MS)

static struct {
    pthread_mutex_t lock;
    bool started;
    uint32_t named; /* agent: the last epoch that the thread was told of */
    uint32_t rings; /* futex */
    _Atomic bool stray;
    _Atomic int file; /* a second descriptor of the lock, while it is waited for; -1: none */
} relay = {.lock = PTHREAD_MUTEX_INITIALIZER, .file = -1};

void relay_pause(void) {
    pthread_mutex_lock(&relay.lock);
}

void relay_go_on(void) {
    pthread_mutex_unlock(&relay.lock);
}

/* Agent, between `relay_pause` and `relay_go_on`: what a coordinator said is not the next one's word. */
void relay_forget(void) {
    struct gpushare_orders *orders = &the_page()->orders;
    PUT(orders->carry, 0);
    PUT(orders->hand_on, 0);
    PUT(orders->restore_ahead, 0);
    PUT(orders->exempt_ns, 0);
}

/* The lock is this client's. False: nobody wants it here any more. */
static bool open_gate(uint32_t epoch) {
    struct gpushare_page *page = the_page();
    uint32_t word = gate_word(page);
    if (GET(page->orders.carry) != epoch || atomic_load(&shim.contact) == ASKING || lockmode_active())
        return false;
    if (is_open(word) || epoch_of(word) == epoch)
        return true; /* the coordinator was faster */
    if (!__atomic_load_n(&page->report.waiting, __ATOMIC_SEQ_CST))
        return false;
    uint32_t opened = epoch << GPUSHARE_GATE_EPOCH_SHIFT | GPUSHARE_GATE_OPEN;
    agent_opens(opened);
    if (__atomic_compare_exchange_n(&page->orders.gate, &word, opened, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        futex_wake_all(&page->orders.gate);
    return true;
}

/* Blocks until the lock is this client's. False: there is none to wait for. */
static bool wait_for_lock(void) {
    relay_pause();
    int lock = shim.devices[0].lock; /* the agent may replace and close it */
    int file = file_is_ours(lock) ? file_keep(fcntl(lock, F_DUPFD_CLOEXEC, 3)) : -1;
    atomic_store(&relay.file, file);
    relay_go_on();
    if (file < 0)
        return false;
    int result;
    do
        result = flock(file, LOCK_EX);
    while (result != 0 && errno == EINTR);
    return result == 0;
}

void relay_forget_file(void) {
    int file = atomic_exchange(&relay.file, -1);
    if (file >= 0)
        file_close(file);
}

static void *run(void *unused) {
    uint32_t done = 0;
    pthread_setname_np(pthread_self(), "gpushare-relay");
    prctl(PR_SET_TIMERSLACK, 1ul);
    for (;;) {
        uint32_t ring = __atomic_load_n(&relay.rings, __ATOMIC_ACQUIRE), epoch = GET(the_page()->orders.carry);
        if (epoch == 0 || epoch == done) {
            if (epoch == 0)
                done = 0;
            futex_wait(&relay.rings, ring, REST_NS);
            continue;
        }
        done = epoch;
        if (wait_for_lock()) {
            relay_pause();
            bool opened = open_gate(epoch);
            relay_go_on();
            /* Named again with another epoch meanwhile: that is what the lock is for, and the next round sees to it. */
            uint32_t now = GET(the_page()->orders.carry);
            if (!opened && (now == 0 || now == epoch))
                atomic_store(&relay.stray, true);
            agent_kick();
        }
        relay_forget_file();
    }
    return unused;
}

/* Agent, at every look at the page. */
void relay_step(uint64_t now) {
    uint32_t epoch = GET(the_page()->orders.carry);
    if (epoch != relay.named) {
        relay.named = epoch;
        if (epoch && !relay.started && !(relay.started = threads_start_own(run)))
            log_once(LOG_INFO, "no thread could be started for handing turns on: they come by the coordinator");
        __atomic_fetch_add(&relay.rings, 1, __ATOMIC_RELEASE);
        futex_wake_all(&relay.rings);
    }
    if (!atomic_exchange(&relay.stray, false))
        return;
    log_line(LOG_DEBUG, "the device's lock came when nobody needed it");
    if (atomic_load(&shim.contact) == THERE)
        socket_say(SAY_DECLINED);
    else
        lockmode_stray(now);
}

/* Agent: drained, and about to say so. Once "drained" is seen the lock is the coordinator's to take again. */
void relay_hand_on(void) {
    struct gpushare_orders *orders = &the_page()->orders;
    if (!__atomic_load_n(&orders->hand_on, __ATOMIC_SEQ_CST) || lockmode_active() || shim.device_count != 1)
        return;
    if (!lockmode_alone()) /* the coordinator has lost sight of another process of this client, which runs by that lock */
        return;
    flock(shim.devices[0].lock, LOCK_UN);
    if (!__atomic_load_n(&orders->hand_on, __ATOMIC_SEQ_CST)) /* taken back in between: another process may need it */
        flock(shim.devices[0].lock, LOCK_EX | LOCK_NB);
}

void relay_after_fork(void) {
    pthread_mutex_init(&relay.lock, NULL);
    relay.started = false;
    relay.named = 0;
    atomic_store(&relay.stray, false);
    relay_forget_file();
}
