/* The agent, its connection to a coordinator, and the devices' lock files. Part of shim.h. */
#ifndef GPUSHARE_CONTACT_H
#define GPUSHARE_CONTACT_H

/* --- agent.c --- */

bool agent_start(void);
bool agent_wait_for_welcome(void); /* wait for the coordinator's answer, at most ANSWER_NS */
void agent_welcome_done(void);     /* agent: the answer has come, or will not */
void agent_welcomed(void);         /* at the answer to hello: the permits of the connection before end */
void agent_after_fork(void);

/* --- socket.c, connect.c --- */

#define ANSWER_NS (2000 * NS_PER_MS)
#define MIN_RETRY_NS (25 * NS_PER_MS) /* an eighth of the time away, between these */
#define MAX_RETRY_NS (250 * NS_PER_MS)
#define STALE_NS (5000 * NS_PER_MS)

int connect_to_coordinator(void);        /* a socket, or -1 */
uint64_t connection_poll(uint64_t now);  /* agent: keep in contact; returns when to be called again */
int connection_fd(bool *wants_to_write); /* agent: what to poll, or -1 */
void connection_flush(uint64_t now);     /* agent: send what is in the outbox */
uint64_t connection_away_since(void);    /* 0: in contact */
void connection_reopen(void);            /* agent: its descriptor is gone, or about to be */
void connection_after_fork(void);

/* --- join.c --- */

bool client_page_accept(const int *files, int count); /* agent; true: the descriptor is ours now */
void client_page_poll(void);                          /* agent: what has come is taken between turns */
bool client_page_is_pending(void);                    /* the slot is not of the present client page */
int client_page_fd(void);                             /* for hello: the latest client page */
uint64_t client_page_own_devices(const struct gpushare_client *client); /* bits in its table; 0: one is missing */
void client_page_discard(void);                                         /* what has come and was not taken yet */
void client_page_after_fork(void);

/* --- details.c --- */

bool details_requested(void); /* agent: the coordinator has asked, in the page, for the details of this process */
size_t message_details(char *line, size_t room);
void details_after_fork(void);

/* --- lock_files.c: `devices` are bits of the client page's table; all by the agent --- */

bool locks_open(uint64_t devices);                            /* false: logged */
bool locks_enter(uint64_t turn, uint64_t devices, bool join); /* on all of them or on none */
void locks_leave(void);
bool locks_have_others(uint64_t devices, uint64_t turn); /* another process is in it, on one of the devices */
void locks_show_waiting(uint64_t devices, bool waits);
void locks_ring(uint64_t devices);
int locks_bell(uint64_t devices); /* the bell of the one device, or -1 */
bool locks_drain_bell(int bell);  /* it has rung; and is silent from here on */
bool locks_poll(uint64_t now);    /* now and then; true: other files stand in the folder, they are ours now */
bool locks_reopen(void);          /* the descriptors are gone; a turn goes on; false: logged */
void locks_close(void);           /* the shim is off */
void locks_after_fork(void);

#endif
