/* Messages to the coordinator: their text, and which of them wait to be sent. */
#ifndef GPUSHARE_CHANNEL_H
#define GPUSHARE_CHANNEL_H

#include "base/base.h"

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* --- messages.c --- */

struct message_writer {
    char *line;
    size_t room, length; /* length >= room: it did not fit */
};

void message_append(struct message_writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void message_append_string(struct message_writer *writer, const char *text);                 /* as a JSON string */
void message_append_text(struct message_writer *writer, const char *name, const char *text); /* a field and its comma */
size_t message_hello(char *line, size_t room); /* the length; 0: no room */
bool message_has_type(const char *line, const char *type);
bool message_has(const char *line, const char *member); /* as compact JSON */
uint64_t message_bytes(const char *line);               /* the member "bytes"; 0: the line has none */
/* Read the member "reason" of compact JSON; "" if the line has none. Control characters become '?'. */
void message_reason(const char *line, char *reason, size_t room);
/* Read the member "devices", a list of UUIDs. Return their number; 0: the line has no such list, or it has no room. */
int message_devices(const char *line, char devices[MAX_DEVICES][GPUSHARE_UUID_BYTES]);

/* --- outbox.c --- */

enum { OUTBOX_CHANGED = 1, OUTBOX_DETAILS = 2, OUTBOX_MOVED = 4, OUTBOX_END = 8 };

void outbox_post(unsigned messages); /* any thread: the agent sends them */
void outbox_put(unsigned messages);  /* agent: likewise, without waking it */
unsigned outbox_take(void); /* agent: they are no longer in it, so that none that is posted from now on is lost */
bool outbox_is_empty(void);

#pragma GCC visibility pop

#endif
