/* The agent, and how it deals with a coordinator, with the next client, and with nobody. Part of shim.h. */
#ifndef GPUSHARE_CONTACT_H
#define GPUSHARE_CONTACT_H

bool agent_start(void);
bool agent_answered(void); /* wait for the coordinator's answer, at most ANSWER_NS */
void agent_settled(void);  /* agent: the answer has come, or will not */
void agent_kick(void);
void agent_unwant(void); /* the last such thread has given up */
bool agent_has_seen(uint32_t word);
void agent_opens(uint32_t word); /* said before the gate is */
void agent_keeps_opening(void);  /* agent: also out of contact */
uint32_t agent_gate_word(void);  /* agent: the gate, past orders that are not for us any more */
void agent_want(uint32_t word);  /* a thread waits at the gate: tell whoever may open it */

void relay_step(uint64_t now); /* agent: has the coordinator named this process as the next? */
void relay_hand_on(void);      /* agent: drained; if somebody waits for the lock it may have it */
void relay_pause(void);        /* agent: from here to `relay_go_on` no lock that comes opens the gate */
void relay_go_on(void);
void relay_forget_file(void); /* agent, likewise: the descriptor that its thread waits with */
void relay_forget(void);
void relay_after_fork(void);

#define ANSWER_NS (2000 * MS)
#define GRACE_NS (2000 * MS)
#define RETRY_NS (250 * MS)
#define STALE_NS (5000 * MS)

enum {
    SAY_WANTS = 1,
    SAY_EVICTING = 2,
    SAY_DRAINED = 4,
    SAY_IDLE = 8,
    SAY_DECLINED = 16,
    SAY_DETAILS = 32,
    SAY_BUSY = 64
};

int connect_anywhere(void);            /* connect.c: a socket, or -1 */
uint64_t socket_step(uint64_t now);    /* agent: keep in contact; returns when to be called again */
int socket_file(bool *wants_to_write); /* agent: what to poll, or -1 */
void socket_say(unsigned messages);
void socket_say_unwants(void);            /* any thread */
void socket_say_short(void);              /* any thread: report.short_bytes has changed */
void socket_say_restored(uint32_t epoch); /* any thread: what was evicted is back */
bool socket_say_wants(void);              /* any thread; false: the agent must */
uint64_t socket_away_since(void);
void socket_start_over(void); /* agent: its descriptor is gone, or about to be */
void socket_after_fork(void);

/* join.c; true: the descriptors are ours now. `word_at_hello`: the gate's */
bool join_client(const int *files, int count, uint32_t word_at_hello);
void join_drop_old(void); /* agent: after a drain */
void join_after_fork(void);

size_t wire_details(char *line, size_t room, uint32_t seq);
size_t wire_hello(char *line, size_t room, uint32_t epoch, bool running);
size_t wire_plain(char *line, size_t room, const char *type);
size_t wire_epoch(char *line, size_t room, const char *type, uint32_t epoch);
bool wire_is(const char *line, const char *type);

bool lockmode_open_files(void);       /* the devices' lock files; false: logged */
uint64_t lockmode_step(uint64_t now); /* agent, away for long enough */
bool lockmode_ready(uint64_t now);    /* agent: may hello be said? */
void lockmode_end(void);              /* agent: a coordinator is there */
void lockmode_contact(bool in_contact);
bool lockmode_active(void);
bool lockmode_alone(void);         /* no other process of the client has its gate open */
void lockmode_stray(uint64_t now); /* agent: the locks are ours and nobody needs them */
bool lockmode_idle(uint64_t now);  /* agent: give up an idle turn; false: it is the coordinator's to end */
void lockmode_hold(bool open);     /* agent: show the client's other processes that our gate is open */
void lockmode_after_fork(void);

#endif
