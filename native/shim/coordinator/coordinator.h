/* The agent, its connection to a coordinator, and the devices' lock files. Part of shim.h. */
#ifndef GPUSHARE_CONTACT_H
#define GPUSHARE_CONTACT_H

/* --- socket.c, connect.c --- */

#define ANSWER_NS (2000 * NS_PER_MS)
#define MIN_RETRY_NS (25 * NS_PER_MS) /* an eighth of the time away, between these */
#define MAX_RETRY_NS (250 * NS_PER_MS)
#define STALE_NS (5000 * NS_PER_MS)

void connection_wait_for_welcome(void);  /* a thread of the program, for at most a little more than ANSWER_NS */
uint32_t connection_count(void);         /* agent: connections that the coordinator has welcomed */
int connect_to_coordinator(void);        /* a socket, or -1 */
uint64_t connection_poll(uint64_t now);  /* agent: keep in contact; returns when to be called again */
int connection_fd(bool *wants_to_write); /* agent: what to poll, or -1 */
void connection_flush(uint64_t now);     /* agent: send what is in the outbox */
uint64_t connection_away_since(void);    /* 0: in contact */
void connection_reopen(void);            /* agent: its descriptor is gone, or about to be */
void connection_after_fork(void);

/* --- pages.c --- */

bool pages_open(void);                             /* at the start of the shim: the first page and client page */
bool page_replace(void);                           /* agent, before hello: a page for the connection that begins */
struct gpushare_client *client_page_map(int file); /* NULL: it cannot be mapped */
bool client_page_replace(void);                    /* agent: a client page of this process alone */
void pages_after_fork(void);

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

#endif
