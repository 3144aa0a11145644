/* The connection with the coordinator, and the shared memory that belongs to it. */
#ifndef GPUSHARE_COORDINATOR_H
#define GPUSHARE_COORDINATOR_H

#include "base/base.h"

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* --- connection.c --- */

#define ANSWER_NS (2000 * NS_PER_MS) /* how long a thread of the program waits for the answer to hello */
/* how long the connection waits, because a stopped coordinator answers as soon as it goes on */
#define MAX_ANSWER_NS (16000 * NS_PER_MS)
#define MIN_RETRY_NS (25 * NS_PER_MS) /* between attempts to connect: an eighth of the time away, within these bounds */
#define MAX_RETRY_NS (250 * NS_PER_MS)
#define STALE_NS (5000 * NS_PER_MS) /* age of the heartbeat from which the coordinator is away */

int connection_open(void);               /* a new connection, after environment_read; -1: no coordinator answers */
uint64_t connection_poll(uint64_t now);  /* the time of the next call */
void connection_flush(uint64_t now);     /* send what is in the outbox */
int connection_fd(bool *wants_to_write); /* to poll; -1: none */
uint64_t connection_away_since(void);    /* 0: connected */
uint32_t connection_count(void);         /* connections that the coordinator has welcomed */
void connection_reopen(const char *why); /* end the connection and connect anew */
void connection_wait_for_welcome(void);  /* a thread of the program: at most a little more than ANSWER_NS */
void connection_after_fork(void);

/* --- move_request.c: the coordinator's request to move this process to another device, to hibernate it or to let it
 * return; the agent calls it --- */

struct move_request {
    char devices[MAX_DEVICES][GPUSHARE_UUID_BYTES]; /* the new device first, then the other devices of the host */
    int count;                                      /* of the devices; 0: there is no request */
    bool hibernates;                                /* leave the device, which is the process's own */
    bool may_start;                                 /* the new device has room */
    uint64_t bytes;                                 /* with may_start: that leave the device */
};

const struct move_request *move_request(void);
void move_request_read(const char *line); /* a line that is not about a move changes nothing */
void move_request_withdraw(void);
void move_request_restart(void);               /* the turn has ended, so the new device needs room anew */
void move_request_answer(const char *error);   /* NULL: the process has moved; the request ends */
size_t message_moved(char *line, size_t room); /* the length; 0: no room */

/* --- pages.c --- */

bool pages_open(void);                             /* when the shim starts: the first page and client page */
bool page_replace(void);                           /* before hello: a page for the new connection */
struct gpushare_client *client_page_map(int file); /* NULL: the descriptor cannot be mapped */
bool client_page_replace(void);                    /* a client page of this process alone, for the same devices */
bool client_page_renew(void);                      /* likewise, for the devices that the process has now */
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
