/* The agent rule, by which a process takes turns, with one function for each phase: see agent_step.h. */
#include "agent/agent_step.h"

#define NS_PER_MS 1000000ull
#define NEVER UINT64_MAX

#define GRACE_NS (2000 * NS_PER_MS)                /* how long the last permit stands after the connection is lost */
#define TRY_NS (20 * NS_PER_MS)                    /* between tries to enter, besides the tries that a bell causes */
#define TRY_WITHOUT_COORDINATOR_NS (5 * NS_PER_MS) /* likewise without a coordinator, where a bell may be missing */
#define REENTRY_DELAY_NS                                                                                               \
    (20 * NS_PER_MS) /* after a turn without a coordinator, so that other clients can enter first */
/* the bell rings this long before a turn ends, because a process takes as long to wake up */
#define BELL_LEAD_NS (150 * NS_PER_MS / 1000)
#define MIN_QUANTUM_NS (10 * NS_PER_MS)
#define MAX_RESTORE_NS (30000 * NS_PER_MS) /* by which a restore extends a turn without a coordinator */
#define RESTORE_POLL_NS (5 * NS_PER_MS)
#define BOUNDARY_PART 4                  /* a turn may end at a training step in the last quarter of its time */
#define MIN_IDLE_POLL_NS (5 * NS_PER_MS) /* between polls for idleness */
#define STUCK_NS (100 * NS_PER_MS)       /* a drain that takes longer, while a thread waits, may wait for that thread */
#define STEP_NS (20 * NS_PER_MS)         /* the length of a step, and the time between steps */
#define UNUSED_STEP_NS (200 * NS_PER_MS) /* how much longer a step lasts while no thread at the gate has run */
#define SLICE_NS (50 * NS_PER_MS)        /* the first whole slice; each slice is twice as long as the one before */
#define SLICE_PERIOD_LENGTHS                                                                                           \
    4 /* a whole slice begins at a multiple of this many times its length, at the same time in all siblings */
#define STEPS_PER_SLICE 16 /* steps before a whole slice */
#define MAX_DOUBLINGS 5
#define OWN_STEP_FACTOR 4                   /* a sibling that has left steps first, because it submits nothing new */
#define MAX_KEEP_NS (1000 * NS_PER_MS)      /* how long memory stays for a sibling that drains */
#define MIN_SIBLING_POLL_NS (NS_PER_MS / 5) /* of a sibling that drains */
#define MAX_SIBLING_POLL_NS (10 * NS_PER_MS)
#define REPORT_EVICTION_NS (20 * NS_PER_MS) /* an eviction that takes longer is reported */
#define MAX_SPURIOUS_BELLS                                                                                             \
    32 /* useless rings in SPURIOUS_WINDOW_NS, after which the process ignores the bell for BELL_IGNORED_NS */
#define SPURIOUS_WINDOW_NS (100 * NS_PER_MS)
#define BELL_IGNORED_NS (20 * NS_PER_MS)

#ifndef AGENT_MUTANT
#define AGENT_MUTANT 0 /* a test builds this file as a mutant, which another test must find */
#endif

/* The terms of a turn at this moment: those of the permit, or those of the rule without a coordinator. */
struct rule {
    uint64_t turn, devices;
    uint64_t deadline; /* of the turn that the process is in, or would enter now */
    uint32_t epoch;
    bool without_coordinator;
    bool silent; /* the coordinator has written no permit yet: a running turn goes on */
    bool may, relieved, contended;
};

static uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t quantum(const struct agent_inputs *in) {
    return max_u64(in->quantum_ns, MIN_QUANTUM_NS);
}

static struct rule rule_of(const struct agent *agent, const struct agent_inputs *in) {
    const struct gpushare_permit *permit = &in->permit;
    if (in->away_since && in->now >= in->away_since + GRACE_NS) {
        /* A turn that began under a coordinator has its own number, and its deadline counts from its own beginning. */
        bool own = agent->report.phase == GPUSHARE_OUT || agent->report.turn == in->client_turn;
        return (struct rule){.turn = in->client_turn,
                             .devices = in->client_devices,
                             .deadline =
                                 (own ? in->client_began : agent->report.entered_ns) + quantum(in) + agent->restore_ns,
                             .without_coordinator = true,
                             .may = true,
                             .relieved = true,
                             .contended = true};
    }
    return (struct rule){.turn = permit->turn,
                         .devices = permit->devices,
                         .deadline = permit->deadline_ns ? permit->deadline_ns : NEVER,
                         .epoch = permit->epoch,
                         .silent = permit->epoch == 0,
                         .may = permit->epoch != 0 && (permit->flags & GPUSHARE_MAY),
                         .relieved = permit->flags & GPUSHARE_RELIEVED,
                         .contended = permit->flags & GPUSHARE_CONTENDED};
}

static bool is_over(const struct rule *rule, uint64_t now) {
    return (rule->relieved || AGENT_MUTANT == 6) && now >= rule->deadline;
}

/* Return true if the process may stay in the turn `turn`, in which it is. */
static bool may_stay(const struct rule *rule, uint64_t turn) {
    return rule->silent || rule->without_coordinator || (rule->may && rule->turn == turn);
}

/* Allow for a restore with 1 GB/s, which takes a nanosecond for each byte. Memory without room would extend a turn
 * without a coordinator for ever. */
static void begin_restore(struct agent *agent, const struct agent_inputs *in) {
    agent->restoring = in->missing_bytes != 0;
    agent->restore_ns = min_u64(in->missing_bytes, MAX_RESTORE_NS);
}

static void poll_restore(struct agent *agent, const struct agent_inputs *in) {
    if (!agent->restoring || in->missing_bytes)
        return;
    agent->restoring = 0;
    agent->restore_ns = min_u64(in->now - agent->report.entered_ns, agent->restore_ns);
}

/* --- the gate and the report -------------------------------------------------------------------------------------- */

static void set_gate(struct agent *agent, uint32_t gate) {
    agent->gate = gate;
    if (gate != AGENT_GATE_CLOSED)
        agent->opening++;
}

static void report_waiting(struct agent *agent, const struct agent_inputs *in, struct agent_outputs *out) {
    bool waits = in->waiting && agent->report.phase != GPUSHARE_IN;
    if (agent->report.phase != GPUSHARE_IN && waits != (bool)agent->reported_waiting)
        out->acts |= AGENT_CHANGED;
    agent->reported_waiting = waits;
}

static void open_gate(struct agent *agent, const struct rule *rule, struct agent_outputs *out) {
    set_gate(agent, AGENT_GATE_OPEN);
    agent->report.phase = GPUSHARE_IN;
    agent->report.closed_ns = 0;
    agent->report.epoch = rule->epoch;
    agent->report.steps = 0;
    agent->idle = agent->slices = agent->helped = 0;
    agent->idle_since = agent->waited_since = 0;
    agent->at_boundary = 0;
    out->acts |= AGENT_WAKE | AGENT_CHANGED;
}

/* Also ends a step. Wake the threads at the gate: threads that made their call in the step wait at the closed gate
 * from now on. */
static void close_gate(struct agent *agent, uint64_t now, struct agent_outputs *out) {
    set_gate(agent, AGENT_GATE_CLOSED);
    agent->report.phase = GPUSHARE_CLOSING;
    agent->closed_at = now;
    if (!agent->report.closed_ns)
        agent->report.closed_ns = now;
    agent->waited_since = 0;
    out->acts |= AGENT_CLOSE | AGENT_WAKE;
}

/* --- steps: a drain may wait for a thread at the gate ------------------------------------------------------------- */

static bool next_is_step(const struct agent *agent) {
    return agent->slices % (STEPS_PER_SLICE + 1) < STEPS_PER_SLICE;
}

/* Return `time`, doubled for each whole slice so far. */
static uint64_t doubled(const struct agent *agent, uint64_t time) {
    uint32_t whole = agent->slices / (STEPS_PER_SLICE + 1);
    return time << (whole < MAX_DOUBLINGS ? whole : MAX_DOUBLINGS);
}

/* Return how long a drain may take before a slice follows. Calls that a whole slice lets in must have time to
 * finish. */
static uint64_t stuck_drain_timeout(const struct agent *agent) {
    bool between = agent->helped || agent->slices % (STEPS_PER_SLICE + 1);
    return between ? STEP_NS : doubled(agent, STUCK_NS);
}

static uint64_t whole_slice(const struct agent *agent) {
    return doubled(agent, SLICE_NS);
}

/* Return when the next slice begins. A step begins when `timeout` has passed since `since`. A whole slice begins by
 * the clock, in all siblings at the same time, because work that waits for their calls finishes best while all their
 * gates are open. */
static uint64_t slice_due(const struct agent *agent, uint64_t since, uint64_t timeout, uint64_t now) {
    uint64_t period = SLICE_PERIOD_LENGTHS * whole_slice(agent), inside = now % period;
    if (next_is_step(agent))
        return since + timeout;
    return inside < whole_slice(agent) ? now : now - inside + period;
}

static void begin_slice(struct agent *agent, const struct agent_inputs *in, struct agent_outputs *out) {
    uint64_t whole = whole_slice(agent);
    bool step = next_is_step(agent);
    set_gate(agent, step ? AGENT_GATE_STEP : AGENT_GATE_OPEN);
    agent->slice_end = step ? in->now + STEP_NS : in->now - in->now % (SLICE_PERIOD_LENGTHS * whole) + whole;
    agent->siblings = in->closing_siblings;
    agent->step_calls = in->submissions;
    agent->helped = 0;
    agent->slices++;
    agent->report.steps++;
    agent->report.phase = GPUSHARE_STEP;
    out->acts |= AGENT_WAKE;
}

/* --- the phases --------------------------------------------------------------------------------------------------- */

static void leave(struct agent *agent, const struct agent_inputs *in, bool without_coordinator,
                  struct agent_outputs *out) {
    out->acts |= AGENT_LEAVE | AGENT_RING | AGENT_CHANGED;
    out->turn = agent->report.turn;
    out->devices = agent->devices;
    agent->report.phase = GPUSHARE_OUT;
    agent->report.left_ns = in->now;
    if (agent->report.epoch && AGENT_MUTANT != 1)
        agent->used = agent->report.epoch;
    agent->next_try = in->now;
    if (without_coordinator) /* the ring of this process is for other processes */
        agent->next_try = agent->bell_ignored_until = in->now + REENTRY_DELAY_NS;
    agent->evicting = 0;
    agent->restoring = 0;
    agent->restore_ns = 0;
    agent->reported_waiting = in->waiting != 0;
}

static void entered(struct agent *agent, const struct agent_inputs *in, const struct rule *rule,
                    struct agent_outputs *out) {
    bool may = rule->may && rule->turn == agent->trying && !is_over(rule, in->now);
    if (rule->without_coordinator && in->tried == AGENT_ENTERED_FIRST) {
        out->acts |= AGENT_BEGIN;
        may = rule->turn == agent->trying;
    }
    if (!may && !agent->steps_in && AGENT_MUTANT != 2) { /* row 3 */
        out->acts |= AGENT_LEAVE | AGENT_RING;
        out->turn = agent->trying;
        out->devices = agent->devices;
        agent->next_try = in->now + TRY_NS;
        return;
    }
    agent->report.turn = agent->trying;
    agent->report.entered_ns = in->now;
    agent->report.closed_ns = agent->report.left_ns = 0;
    agent->report.epoch = 0;
    agent->submissions = in->submissions;
    agent->first_training_step = in->training_steps;
    if (agent->steps_in) { /* row 7 */
        agent->report.closed_ns = in->now;
        begin_slice(agent, in, out);
        out->acts |= AGENT_CHANGED;
    } else { /* row 2 */
        begin_restore(agent, in);
        open_gate(agent, rule, out);
    }
}

static void refused(struct agent *agent, const struct agent_inputs *in, const struct rule *rule) {
    agent->report.refused_entries++;
    agent->next_try = in->now + (rule->without_coordinator ? TRY_WITHOUT_COORDINATOR_NS : TRY_NS);
    if (!agent->bell_rang)
        return;
    if (in->now > agent->spurious_since + SPURIOUS_WINDOW_NS) {
        agent->spurious_since = in->now;
        agent->spurious_bells = 0;
    }
    if (++agent->spurious_bells >= MAX_SPURIOUS_BELLS) {
        agent->bell_ignored_until = in->now + BELL_IGNORED_NS;
        agent->spurious_bells = 0;
    }
}

static void try_to_enter(struct agent *agent, uint64_t turn, uint64_t devices, struct agent_outputs *out) {
    agent->trying = turn;
    agent->devices = devices;
    out->turn = turn;
    out->devices = devices;
    out->acts |= AGENT_ENTER | (agent->steps_in ? AGENT_JOIN : 0);
}

/* Return when to step in the turn of a sibling that drains. The sibling may wait for the call of a thread here. */
static uint64_t step_due(const struct agent *agent, const struct agent_inputs *in) {
    if (in->sibling_turn < GPUSHARE_FIRST_TURN)
        return NEVER;
    uint64_t since = max_u64(in->sibling_since, agent->closed_at);
    return max_u64(slice_due(agent, since, stuck_drain_timeout(agent), in->now), agent->next_try);
}

static void while_out(struct agent *agent, const struct agent_inputs *in, const struct rule *rule,
                      struct agent_outputs *out) {
    uint64_t now = in->now;
    if (in->tried >= AGENT_ENTERED) {
        entered(agent, in, rule, out);
        out->wake_at = now;
        return;
    }
    if (in->tried == AGENT_REFUSED)
        refused(agent, in, rule); /* row 4 */
    agent->bell_rang = 0;
    if (!in->waiting)
        return;
    /* Without a coordinator the deadline is that of the turn which siblings are in. If no sibling is in a turn, a
     * turn would begin now. */
    bool over = (!rule->without_coordinator || in->client_in) && is_over(rule, now);
    /* a device that the permit does not cover keeps the process out */
    bool covers = !(in->own_devices & ~rule->devices);
    bool may = rule->may && covers && !over && (rule->without_coordinator || rule->epoch != agent->used);
    uint64_t due = may && rule->turn == in->sibling_turn ? NEVER : step_due(agent, in);
    agent->steps_in = now >= due;
    if (agent->steps_in) { /* row 7; even with a permit, which is useless as long as the sibling drains */
        try_to_enter(agent, in->sibling_turn, in->own_devices, out);
        if (AGENT_MUTANT == 8) {
            out->acts = 0;
            entered(agent, in, rule, out);
        }
        return;
    }
    if (may) { /* row 1 */
        bool accepts_bell = now >= agent->bell_ignored_until;
        agent->bell_rang = in->bell && accepts_bell && in->tried == AGENT_NOT_TRIED;
        if (now >= agent->next_try || agent->bell_rang) {
            try_to_enter(agent, rule->turn, rule->devices, out);
            return;
        }
        out->devices = rule->devices;
        out->listen = accepts_bell && (rule->devices & (rule->devices - 1)) == 0;
        out->wake_at = agent->next_try;
    } else if (rule->without_coordinator) {
        out->wake_at = now + TRY_WITHOUT_COORDINATOR_NS; /* the last sibling to leave does not wake this process */
    }
    out->wake_at = min_u64(out->wake_at, due);
}

/* While another client waits: find out whether this process has been idle for long enough. */
static void poll_idleness(struct agent *agent, const struct agent_inputs *in, const struct rule *rule,
                          struct agent_outputs *out) {
    uint64_t now = in->now, release = in->idle_release_ns;
    bool was_idle = agent->idle;
    if (!rule->contended || !release) {
        agent->idle = 0;
        agent->idle_since = 0;
    } else {
        out->acts |= AGENT_POLL;
        if (in->submissions != agent->submissions || in->polled == AGENT_BUSY)
            agent->idle = agent->idle_since = 0;
        else if (in->polled == AGENT_QUIET && !agent->idle_since)
            agent->idle_since = now;
        agent->idle = agent->idle_since && now >= agent->idle_since + release;
        uint64_t next = max_u64(release / 4, MIN_IDLE_POLL_NS);
        out->wake_at = min_u64(out->wake_at, now + next);
        if (agent->idle_since && !agent->idle)
            out->wake_at = min_u64(out->wake_at, agent->idle_since + release);
    }
    agent->submissions = in->submissions;
    if (agent->idle != was_idle)
        out->acts |= AGENT_CHANGED; /* row 12 */
}

/* The next client's process sleeps. The bell wakes it a little before it may enter, so that it runs by then. */
static void announce_end(struct agent *agent, uint64_t now, const struct rule *rule, struct agent_outputs *out) {
    out->wake_at = rule->deadline;
    if (agent->bell_deadline == rule->deadline)
        return;
    if (now + BELL_LEAD_NS < rule->deadline) {
        out->wake_at = rule->deadline - BELL_LEAD_NS;
        return;
    }
    agent->bell_deadline = rule->deadline;
    out->devices = agent->devices;
    out->acts |= AGENT_RING;
}

/* Return from when on a turn ends at the end of a training step. There a program has the least memory that must move.
 * One step should end after that time, so the time before the deadline is a mean step and a quarter more. The turn
 * never becomes longer, so a program gains no time by its marks. */
static uint64_t boundary_from(const struct agent *agent, const struct agent_inputs *in, const struct rule *rule) {
    uint64_t entered = agent->report.entered_ns, steps = in->training_steps - agent->first_training_step;
    if (!in->training_steps || !rule->relieved || rule->silent || rule->deadline == NEVER || rule->deadline <= entered)
        return NEVER;
    uint64_t window = (rule->deadline - entered) / BOUNDARY_PART;
    if (steps)
        window = min_u64(window, (in->now - entered) / steps * 5 / 4);
    return rule->deadline - window;
}

static void while_in(struct agent *agent, const struct agent_inputs *in, const struct rule *rule,
                     struct agent_outputs *out) {
    uint64_t now = in->now;
    if (!may_stay(rule, agent->report.turn) || (!rule->silent && is_over(rule, now))) { /* rows 10, 11 */
        close_gate(agent, now, out);
        out->wake_at = now;
        return;
    }
    if (!rule->silent && !rule->without_coordinator && rule->epoch != agent->report.epoch) { /* row 9 */
        agent->report.epoch = rule->epoch;
        out->acts |= AGENT_CHANGED;
    }
    if (!rule->silent && (rule->relieved || AGENT_MUTANT == 6))
        announce_end(agent, now, rule, out);
    if (agent->restoring && rule->without_coordinator)
        out->wake_at = min_u64(out->wake_at, now + RESTORE_POLL_NS);
    poll_idleness(agent, in, rule, out);
    if (agent->idle && rule->without_coordinator) {
        close_gate(agent, now, out);
        out->wake_at = now;
        return;
    }
    out->boundary_from = boundary_from(agent, in, rule);
    if (now < out->boundary_from)
        out->wake_at = min_u64(out->wake_at, out->boundary_from);
    else if (in->boundary_ns >= out->boundary_from) { /* row 23 */
        agent->at_boundary = 1;
        out->boundary_from = NEVER;
        close_gate(agent, now, out);
        out->wake_at = now;
    }
}

/* Return true if the closing may be cancelled. */
static bool may_reopen(const struct agent *agent, const struct rule *rule, uint64_t now) {
    bool used_up = !rule->without_coordinator && rule->epoch != agent->report.epoch && rule->epoch == agent->used;
    /* After a training step the turn is over as after its deadline, unless the coordinator lets it go on. */
    bool ended = agent->at_boundary && rule->relieved && rule->epoch == agent->report.epoch;
    return rule->may && rule->turn == agent->report.turn && !is_over(rule, now) && !used_up && !ended;
}

/* A sibling may finish only after a call of this process. That call would restore evicted memory, again and again,
 * so the memory stays for a while. */
static void drained(struct agent *agent, const struct agent_inputs *in, struct agent_outputs *out) {
    uint64_t now = in->now, due = in->waiting ? step_due(agent, in) : NEVER;
    agent->keeps = in->closing_siblings && now < agent->drained_at + MAX_KEEP_NS;
    if (!agent->keeps) {
        agent->drained_at = now;
        out->acts |= AGENT_DRAINED;
        out->wake_at = now;
    } else if (now >= due) { /* row 15 */
        agent->keeps = 0;
        begin_slice(agent, in, out);
        out->wake_at = now;
    } else {
        out->wake_at = min_u64(
            due, now + min_u64(max_u64((now - agent->drained_at) / 8, MIN_SIBLING_POLL_NS), MAX_SIBLING_POLL_NS));
    }
}

static void while_closing(struct agent *agent, const struct agent_inputs *in, const struct rule *rule,
                          struct agent_outputs *out) {
    uint64_t now = in->now;
    if (may_reopen(agent, rule, now) && (in->waiting || !rule->without_coordinator)) { /* row 13 */
        open_gate(agent, rule, out);
        out->wake_at = now;
        return;
    }
    if (in->polled == AGENT_QUIET || AGENT_MUTANT == 4) { /* row 14 */
        agent->report.phase = GPUSHARE_LEAVING;
        agent->drained_at = now;
        drained(agent, in, out);
        return;
    }
    if (!in->waiting) {
        agent->waited_since = 0;
        return;
    }
    if (!agent->waited_since)
        agent->waited_since = now;
    uint64_t due =
        slice_due(agent, agent->waited_since, stuck_drain_timeout(agent) * (agent->slices ? OWN_STEP_FACTOR : 1), now);
    if (now >= due) { /* row 15 */
        begin_slice(agent, in, out);
        out->wake_at = now;
        return;
    }
    out->wake_at = due;
}

static void while_stepping(struct agent *agent, const struct agent_inputs *in, const struct rule *rule,
                           struct agent_outputs *out) {
    uint64_t now = in->now;
    if (may_reopen(agent, rule, now)) {
        open_gate(agent, rule, out);
        out->wake_at = now;
        return;
    }
    bool sibling_left = in->closing_siblings < agent->siblings;
    if (sibling_left) /* work of this process may wait for the sibling's work in turn */
        agent->helped = 1;
    bool step = agent->gate == AGENT_GATE_STEP, used = in->submissions != agent->step_calls;
    uint64_t end = agent->slice_end + (step && in->waiting && !used ? UNUSED_STEP_NS : 0);
    bool quiet = !step && used && in->polled == AGENT_QUIET;
    if (now >= end || sibling_left || quiet) { /* row 16 */
        close_gate(agent, now, out);
        out->wake_at = now;
        return;
    }
    agent->siblings = in->closing_siblings;
    out->acts |= step ? 0 : AGENT_POLL;
    out->wake_at = min_u64(end, now + NS_PER_MS);
}

static void while_leaving(struct agent *agent, const struct agent_inputs *in, const struct rule *rule,
                          struct agent_outputs *out) {
    if (agent->keeps && may_reopen(agent, rule, in->now) && (in->waiting || !rule->without_coordinator)) { /* row 13 */
        agent->keeps = 0;
        open_gate(agent, rule, out);
        out->wake_at = in->now;
        return;
    }
    if (agent->keeps) {
        drained(agent, in, out);
        return;
    }
    if (!in->moving) { /* row 17 */
        leave(agent, in, rule->without_coordinator, out);
        out->wake_at = in->now;
        return;
    }
    if (!agent->evicting && in->now >= agent->drained_at + REPORT_EVICTION_NS) { /* row 18 */
        agent->evicting = 1;
        out->acts |= AGENT_CHANGED;
    }
    if (!agent->evicting)
        out->wake_at = agent->drained_at + REPORT_EVICTION_NS;
}

void agent_step(struct agent *agent, const struct agent_inputs *in, struct agent_outputs *out) {
    poll_restore(agent, in);
    struct rule rule = rule_of(agent, in);
    *out = (struct agent_outputs){.wake_at = NEVER, .boundary_from = NEVER};
    switch (agent->report.phase) {
    case GPUSHARE_OUT:
        while_out(agent, in, &rule, out);
        break;
    case GPUSHARE_IN:
        while_in(agent, in, &rule, out);
        break;
    case GPUSHARE_CLOSING:
        while_closing(agent, in, &rule, out);
        break;
    case GPUSHARE_STEP:
        while_stepping(agent, in, &rule, out);
        break;
    default:
        while_leaving(agent, in, &rule, out);
    }
    report_waiting(agent, in, out);
    if (in->away_since && !rule.without_coordinator)
        out->wake_at = min_u64(out->wake_at, in->away_since + GRACE_NS);
    out->gate = agent->gate;
    out->opening = agent->opening;
    out->contended = rule.contended;
    out->without_coordinator = rule.without_coordinator;
    out->idle = agent->idle;
    out->evicting = agent->evicting;
    out->report = agent->report;
    if (in->away_since) /* the next coordinator starts its epochs anew */
        out->report.epoch = 0;
    out->report.check = gpushare_check(&out->report, GPUSHARE_TURN_WORDS);
}

void agent_new_connection(struct agent *agent) {
    agent->used = 0;
    agent->report.epoch = 0; /* a turn of an earlier connection's epoch uses up no epoch of this connection */
}
