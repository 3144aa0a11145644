/* The connection with the coordinator, and the shared memory that belongs to it. */
#ifndef GPUSHARE_COORDINATOR_H
#define GPUSHARE_COORDINATOR_H

#include "base/base.h"

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* --- connection.c --- */

#define ANSWER_NS (2000 * NS_PER_MS)  /* how long the answer to hello may take */
#define MIN_RETRY_NS (25 * NS_PER_MS) /* between attempts to connect: an eighth of the time away, within these bounds */
#define MAX_RETRY_NS (250 * NS_PER_MS)
#define STALE_NS (5000 * NS_PER_MS) /* age of the heartbeat from which the coordinator is away */

int connection_open(void);               /* a new connection, after environment_read; -1: no coordinator answers */
uint64_t connection_poll(uint64_t now);  /* the time of the next call */
void connection_flush(uint64_t now);     /* send what is in the outbox */
int connection_fd(bool *wants_to_write); /* to poll; -1: none */
uint64_t connection_away_since(void);    /* 0: connected */
uint32_t connection_count(void);         /* connections that the coordinator has welcomed */
void connection_reopen(void);            /* the program has closed the descriptor, or is about to */
void connection_wait_for_welcome(void);  /* a thread of the program: at most a little more than ANSWER_NS */
void connection_after_fork(void);

/* --- pages.c --- */

bool pages_open(void);                             /* when the shim starts: the first page and client page */
bool page_replace(void);                           /* before hello: a page for the new connection */
struct gpushare_client *client_page_map(int file); /* NULL: the descriptor cannot be mapped */
bool client_page_replace(void);                    /* a client page of this process alone */
void pages_after_fork(void);

/* --- client_page.c: the client page that the coordinator passes on --- */

bool client_page_accept(const int *files, int count); /* true: the descriptor is the shim's now */
void client_page_poll(void);                          /* attach the pending client page between turns */
bool client_page_is_pending(void);                    /* the page's slot is not of the attached client page */
int client_page_fd(void);                             /* for hello: the latest client page */
uint64_t client_page_own_devices(const struct gpushare_client *client); /* bits in its table; 0: one is missing */
void client_page_discard(void);                                         /* the pending client page */
void client_page_after_fork(void);

/* --- details.c --- */

bool details_requested(void);                    /* true once for each request in the page */
size_t message_details(char *line, size_t room); /* the length; 0: no room */
void details_after_fork(void);

#pragma GCC visibility pop

#endif
