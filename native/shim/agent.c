/* The agent: one thread that does all that waits. It sleeps until something happens: a line from the coordinator (often
 * the doorbell, "look at your page"), a kick by a thread, or the time that one of its parts has asked for. */
#include "shim.h"

#include <poll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS (1000 * MS)    /* while the gate is open and nobody else waits */
#define LEAST_TICK_NS (5 * MS) /* while others wait: how often idleness is looked for, at most */
#define WANTS_NS (20 * MS)     /* "wants" waits for "drained" this long */
#define FREE_NS (10 * MS)      /* between looks at memory that waits for its stream */

static struct {
    uint32_t word; /* the opening that the rest is about */
    struct counters counters;
    uint64_t summed_at, submitted_at, idle_since;
    bool probing, said_idle, stepping;
    _Atomic bool wants_later; /* to be said after "drained" */
    _Atomic uint32_t settled; /* cuInit need not wait any more */
} agent;

static _Atomic uint32_t latest_opening; /* the gate word */

void agent_kick(void) {
    if (file_is_ours(shim.waker) && write(shim.waker, "", 1) < 0)
        return; /* full: it is awake already */
}

void agent_settled(void) {
    atomic_store(&agent.settled, 1);
    futex_wake_all((uint32_t *)&agent.settled);
}

bool agent_answered(void) {
    uint64_t now = now_ns(), end = now + ANSWER_NS + 100 * MS;
    for (; now < end && !atomic_load(&agent.settled); now = now_ns())
        futex_wait((uint32_t *)&agent.settled, 0, end - now);
    return atomic_load(&agent.settled);
}

/* Before a gate is opened in this process, whoever does it: a closing that comes right behind is not to pass for an old
 * one, with threads inside already. */
void agent_opens(uint32_t word) {
    atomic_store(&latest_opening, word);
}

/* The coordinator is being lost, and the record lock is held: what it has opened until now goes on. */
void agent_keeps_opening(void) {
    uint32_t word = unmetered(gate_word(the_page()));
    if (!is_open(word))
        return;
    agent_opens(word);
    futex_wake_all(&the_page()->orders.gate);
}

/* May a thread go by an opening? Out of contact, only by one that was made here or that the agent has seen in contact: then
 * it holds the record lock without which the coordinator, which sees the connection's end, would take the process not to
 * run. */
bool agent_has_seen(uint32_t word) {
    return atomic_load(&shim.contact) == THERE || unmetered(word) == atomic_load(&latest_opening);
}

static bool is_stale(uint32_t word, uint32_t latest) {
    enum contact state = atomic_load(&shim.contact);
    if (is_closing(word))
        return state != THERE && epoch_of(word) < epoch_of(latest);
    return state == AWAY && is_open(word) && unmetered(word) != latest;
}

/* A coordinator that had hung may write to our gate when we have long left it. It closes by an epoch of which we have
 * drained: that is taken as the closing of the present opening, which it becomes. It opens by a hello whose answer we never
 * read, which may have said that another client page and other locks are ours: that opening is over for us. */
uint32_t agent_gate_word(void) {
    struct gpushare_page *page = the_page();
    uint32_t word = gate_word(page), latest;
    while (is_stale(word, latest = atomic_load(&latest_opening))) {
        bool opened = is_open(word);
        uint32_t closing = closing_of(opened ? word : latest);
        if (!__atomic_compare_exchange_n(&page->orders.gate, &word, closing, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        if (opened) /* the closing is not to pass for an old one; and nobody may go by that word */
            atomic_compare_exchange_strong(&latest_opening, &latest, closing);
        return closing;
    }
    return word;
}

static void say_wants(void) {
    if (!socket_say_wants())
        agent_kick();
}

/* A thread that has meanwhile been let in needs nothing said for it. */
static void say_later_wants(void) {
    if (atomic_exchange(&agent.wants_later, false) && __atomic_load_n(&the_page()->report.waiting, __ATOMIC_SEQ_CST))
        say_wants();
}

static bool drained_of(uint32_t word) {
    return __atomic_load_n(&the_page()->report.drained_epoch, __ATOMIC_SEQ_CST) == epoch_of(word);
}

/* While a turn is being closed, the coordinator is to hear "drained" first: that is what the next client waits for. */
void agent_want(uint32_t word) {
    if (atomic_exchange(&shim.wants_for, word + 1) == word + 1)
        return;
    if (atomic_load(&shim.contact) == THERE && is_closing(word) && !drained_of(word)) {
        atomic_store(&agent.wants_later, true);
        if (!drained_of(word) || !atomic_exchange(&agent.wants_later, false))
            return; /* the agent says it, with "drained" or when that takes long */
    }
    say_wants();
}

/* Another thread may have begun to wait meanwhile, and its "wants" gone out before our "unwants": then say it again. */
void agent_unwant(void) {
    atomic_store(&agent.wants_later, false);
    atomic_store(&shim.wants_for, 0);
    socket_say_unwants();
    struct gpushare_page *page = the_page();
    uint32_t word = gate_word(page);
    if (__atomic_load_n(&page->report.waiting, __ATOMIC_SEQ_CST) && !is_open(word)) {
        atomic_store(&shim.wants_for, 0);
        agent_want(word);
    }
}

static uint64_t submissions(const struct counters *counters) {
    return counters->launches + counters->copies + counters->others;
}

static void publish(uint64_t now) {
    struct gpushare_report *report = &the_page()->report;
    struct counters sum;
    threads_sum(&sum);
    if (submissions(&sum) != submissions(&agent.counters))
        agent.submitted_at = now;
    agent.counters = sum;
    agent.summed_at = now;
    PUT(report->launches, sum.launches);
    PUT(report->blocks, sum.blocks);
    PUT(report->copies, sum.copies);
    PUT(report->bytes_copied, sum.bytes_copied);
    PUT(report->last_submission_ns, agent.submitted_at);
    PUT(report->sampled_ns, now);
}

static void opened(uint32_t word, uint64_t now) {
    agent.word = word;
    agent_opens(word);
    agent.idle_since = now;
    agent.probing = agent.said_idle = false;
    agent.stepping = is_step(word);
    usage_opened(now);
    lockmode_hold(true);
    log_line(LOG_DEBUG, "gate open, epoch %u", epoch_of(word));
}

/* Others wait: has this process neither submitted anything nor had work on the device for long enough? */
static void look_for_idleness(uint64_t now, uint64_t release) {
    if (agent.submitted_at == now || threads_inside()) {
        if (agent.said_idle && (GET(the_page()->orders.hears) & 8))
            socket_say(SAY_BUSY); /* the turn goes on for another process of this client, or because it is held */
        agent.idle_since = 0;
        agent.probing = agent.said_idle = false;
        return;
    }
    if (agent.said_idle && !lockmode_active()) /* there the one that it was said to is gone */
        return;
    bool finished = streams_poll(!agent.probing);
    agent.probing = true;
    if (!finished) {
        agent.idle_since = 0;
        return;
    }
    if (!agent.idle_since)
        agent.idle_since = now;
    if (now < agent.idle_since + release)
        return;
    if (lockmode_idle(now) || atomic_load(&shim.contact) != THERE)
        return;
    agent.said_idle = true;
    socket_say(SAY_IDLE);
}

static uint64_t while_closing(uint32_t word, uint64_t now) {
    uint64_t next = NEVER;
    if (agent.stepping) { /* threads that have made their call wait on the open word: they are to ask by this one */
        agent.stepping = false;
        futex_wake_all(&the_page()->orders.gate);
    }
    if (!drain_step(word, now, &next)) {
        if (now > drain_began() + WANTS_NS)
            say_later_wants(); /* what has not drained may wait for that thread */
        return next;
    }
    if (!lockmode_active())
        lockmode_hold(false); /* first: the coordinator looks for processes that run by themselves */
    if (atomic_load(&shim.contact) == THERE)
        socket_say(SAY_DRAINED);
    say_later_wants();
    publish(now);
    join_drop_old();
    log_line(LOG_DEBUG, "drained, epoch %u, %.3f ms", epoch_of(word), (double)GET(the_page()->report.drain_ns) / MS);
    return lockmode_active() ? now : NEVER;
}

/* The page says when the turn ends: the coordinator, which would have to wake up first, need not be on the way. */
static uint64_t close_by_deadline(uint32_t word, uint64_t now) {
    uint32_t closing = closing_of(word), present = gate_word(the_page());
    if (unmetered(present) != word || !__atomic_compare_exchange_n(&the_page()->orders.gate, &present, closing, false,
                                                                   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return now; /* the coordinator was faster */
    return while_closing(closing, now);
}

static uint64_t while_open(uint32_t word, uint64_t now) {
    struct gpushare_orders *orders = &the_page()->orders;
    bool contended = lockmode_active() || GET(orders->contended);
    if (meter_switch(word))
        log_line(LOG_DEBUG, "metered: %s", word & GPUSHARE_GATE_METERED ? "no" : "yes");
    word = unmetered(word);
    if (agent.word != word) {
        drain_abandon(is_step(word));
        opened(word, now);
    }
    /* Without a coordinator somebody must wait for our lock, or the turn would end for nobody. */
    bool told = atomic_load(&shim.contact) == THERE || (!lockmode_active() && GET(orders->hand_on));
    uint64_t deadline = told ? GET(orders->deadline_ns) : 0;
    if (deadline && now >= deadline)
        return close_by_deadline(word, now);
    uint64_t latest = least(deadline ? deadline : NEVER, usage_look(now)), release = GET(orders->idle_release_ns);
    bool watch = release && contended;
    uint64_t tick = !watch ? LOOK_NS : release / 4 > LEAST_TICK_NS ? release / 4 : LEAST_TICK_NS;
    if (now < agent.summed_at + tick && watch == agent.probing)
        return agent.summed_at + tick < latest ? agent.summed_at + tick : latest;
    publish(now);
    if (watch)
        look_for_idleness(now, release);
    return now + tick < latest ? now + tick : latest;
}

/* One look at everything; when to look again. */
static uint64_t step(uint64_t now) {
    if (!files_are_ours())
        shim_start_over();
    struct gpushare_page *page = the_page();
    uint64_t next = socket_step(now), part = NEVER;
    if (inspect_due())
        socket_say(SAY_DETAILS);
    if (atomic_load(&shim.contact) == AWAY)
        part = lockmode_step(now);
    next = part < next ? part : next;
    relay_step(now);
    uint32_t word = agent_gate_word(), phase = GPUSHARE_PHASE_IDLE;
    part = NEVER;
    if (is_open(word) && agent_has_seen(word)) { /* else we wait for an answer to hello that says how it is meant */
        phase = GPUSHARE_PHASE_RUNNING;
        part = while_open(word, now);
    } else if (is_closing(word) && GET(page->report.drained_epoch) != epoch_of(word)) {
        PUT(page->report.phase, GPUSHARE_PHASE_DRAINING);
        part = while_closing(word, now);
        phase = GET(page->report.drained_epoch) != epoch_of(word) ? GPUSHARE_PHASE_DRAINING : phase;
    }
    if (phase == GPUSHARE_PHASE_IDLE) {
        uint64_t look = memory_look(now);
        part = look < part ? look : part;
    }
    if (phase == GPUSHARE_PHASE_IDLE && GET(page->report.waiting))
        phase = GPUSHARE_PHASE_WAITING;
    PUT(page->report.phase, phase);
    next = part < next ? part : next;
    if (deferred_any()) {
        deferred_free();
        next = deferred_any() && now + FREE_NS < next ? now + FREE_NS : next;
    }
    return next;
}

static void sleep_until(uint64_t next) {
    bool wants_to_write;
    int file = socket_file(&wants_to_write);
    uint64_t now = now_ns(), left = next > now ? next - now : 0;
    left = left < LOOK_NS ? left : LOOK_NS; /* nobody could wake it if the program has closed our descriptors */
    struct timespec time = {(time_t)(left / (1000 * MS)), (long)(left % (1000 * MS))};
    struct pollfd files[2] = {
        {.fd = shim.wake, .events = POLLIN},
        {.fd = file, .events = (short)(POLLIN | (wants_to_write ? POLLOUT : 0))},
    };
    char kicks[64];
    ppoll(files, file >= 0 ? 2 : 1, &time, NULL);
    if ((files[0].revents & POLLIN) && file_is_ours(shim.wake) && read(shim.wake, kicks, sizeof kicks) < 0)
        return;
}

static void *run(void *unused) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_setname_np(pthread_self(), "gpushare");
    prctl(PR_SET_TIMERSLACK, 1ul); /* short pauses while draining are meant */
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    while (atomic_load(&shim.state) != OFF)
        sleep_until(step(now_ns()));
    return unused;
}

bool agent_start(void) {
    agent = (typeof(agent)){.settled = 0};
    agent_opens(0);
    return threads_start_own(run);
}
