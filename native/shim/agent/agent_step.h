/* The rule by which a process takes turns, as a pure function: no I/O, no thread, no clock, no global state. The shim's
 * agent thread (agent.c) carries out the outputs; tests run the same object file through cffi, in virtual time.
 *
 * Rows in comments are the rows of the table in docs/explanation/turns.md. */
#ifndef GPUSHARE_AGENT_STEP_H
#define GPUSHARE_AGENT_STEP_H

#include "base/page.h"

#include <stdbool.h>
#include <stdint.h>

/* agent layout begins */

/* The state of the gate. */
#define AGENT_GATE_CLOSED 0
#define AGENT_GATE_OPEN 1
#define AGENT_GATE_STEP 2 /* open for one call of each thread, so that a call on which the drain depends can come */

/* acts: what the edge has to do; `carry_out` in agent.c has the order */
#define AGENT_ENTER 1     /* try to enter `turn` on `devices`, then step at once with the result in `tried` */
#define AGENT_JOIN 2      /* with ENTER: only if another process is in that turn */
#define AGENT_BEGIN 4     /* write `now` to the client page as the beginning of the client's turn */
#define AGENT_CLOSE 8     /* the gate has closed: poll for calls inside and unfinished work from now on */
#define AGENT_DRAINED 16  /* the work has finished: clear the marks, move the memory that must leave */
#define AGENT_LEAVE 32    /* leave `turn` on `devices` */
#define AGENT_RING 64     /* ring the bells of `devices` */
#define AGENT_WAKE 128    /* wake the threads at the gate */
#define AGENT_CHANGED 256 /* ring the coordinator, because the report has changed */
#define AGENT_POLL 512    /* in the turn: poll for calls inside and unfinished work before the next step */

struct agent_inputs {
    uint64_t now;
    struct gpushare_permit permit; /* the last whole permit of the latest welcomed connection */
    uint64_t quantum_ns, idle_release_ns;
    uint64_t away_since;                /* when the connection was lost; 0: connected */
    uint64_t client_turn, client_began; /* of the client page */
    uint64_t client_devices;            /* bits: all devices of the client page */
    uint64_t own_devices;               /* bits: the devices that this process uses */
    uint64_t sibling_turn,
        /* of the sibling whose gate has been closed for longest, in a turn that another process is in by the
         * device's lock; 0: none */
        sibling_since;
    uint64_t submissions;    /* calls that this process has submitted so far */
    uint64_t training_steps; /* that the program has marked so far */
    uint64_t boundary_ns;    /* when the program was last between two training steps, as far as `boundary_from` asked */
    uint64_t missing_bytes;  /* of memory that must be on the device before a call passes the gate */
    uint32_t closing_siblings; /* siblings whose gate is closed and whose work has not finished */
    uint32_t client_in;        /* another process is in `client_turn`, by the device's lock */
    uint32_t waiting;          /* threads at the gate */
    uint32_t tried;            /* AGENT_…: what became of ENTER */
    uint32_t polled;           /* AGENT_…: what the edge has found since the last step */
    uint32_t bell;             /* a bell of the permitted device has rung */
    uint32_t moving;           /* memory that must leave before the turn ends has not left */
    uint32_t unused;
};

/* tried */
#define AGENT_NOT_TRIED 0
#define AGENT_REFUSED 1
#define AGENT_ENTERED 2
#define AGENT_ENTERED_FIRST 3 /* and no other process was in the turn */

/* polled */
#define AGENT_NOT_POLLED 0
#define AGENT_BUSY 1  /* a call is inside the gate, or submitted work has not finished */
#define AGENT_QUIET 2 /* no call is inside, and all work has finished */

struct agent_outputs {
    uint32_t gate;    /* AGENT_GATE_… */
    uint32_t opening; /* the number of openings of the gate; a thread passes a step once per opening */
    uint32_t acts;
    uint32_t listen;              /* poll the bell of `devices` */
    uint32_t contended;           /* another client waits, so work in flight has a bound */
    uint32_t without_coordinator; /* the rule in force is the one without a coordinator */
    uint32_t idle, evicting;      /* for the report */
    uint32_t unused;
    uint64_t turn, devices;
    uint64_t wake_at;       /* step again then, or when an input changes */
    uint64_t boundary_from; /* from then on, the end of a training step is an input; NEVER: it is none */
    struct gpushare_turn report;
};

/* The state of the rule in one process. All fields are 0 at the start: the process is in no turn. */
struct agent {
    struct gpushare_turn report;
    uint64_t devices; /* of the turn that the process is in or tries to enter */
    uint64_t trying;  /* the turn that ENTER tries */
    uint64_t next_try;
    uint64_t idle_since;   /* 0: busy */
    uint64_t submissions;  /* at the last poll */
    uint64_t waited_since; /* since when a thread has waited for a turn that closes; 0: none waits */
    uint64_t closed_at;    /* when the gate closed last, also after a step */
    uint64_t restore_ns;   /* of the turn: the time of its restore, or while memory is missing, the longest time */
    uint64_t first_training_step; /* `training_steps` when the turn began */
    uint64_t slice_end;
    uint64_t drained_at;
    uint64_t spurious_since, bell_ignored_until;
    uint64_t bell_deadline; /* the deadline that the bell has announced */
    uint32_t used;          /* the epoch under which the process left last; 0: none */
    uint32_t opening;
    uint32_t gate;
    uint32_t slices;           /* steps and whole slices since the gate closed */
    uint32_t siblings;         /* closing when the slice began */
    uint64_t step_calls;       /* submissions when the step began */
    uint32_t spurious_bells;   /* useless rings since `spurious_since` */
    uint32_t steps_in;         /* ENTER is for a step of a sibling's turn */
    uint32_t helped;           /* the last slice let a sibling leave */
    uint32_t reported_waiting; /* the report shows that a thread waits */
    uint32_t keeps;            /* drained, but turn and memory stay because a sibling still drains */
    uint32_t restoring;        /* memory that was missing at the start of the turn is missing still */
    uint32_t idle, evicting, bell_rang;
    uint32_t at_boundary; /* the gate has closed at the end of a training step */
};

void agent_step(struct agent *agent, const struct agent_inputs *in, struct agent_outputs *out);

/* A coordinator has welcomed the process: its permits are new, whatever their epoch. The last permit of the previous
 * connection stands until then. */
void agent_new_connection(struct agent *agent);

/* agent layout ends */

#endif
