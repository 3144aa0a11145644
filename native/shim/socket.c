/* The way to the coordinator: connecting, hello and its answer, messages out. All by the agent. */
#include "shim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONGEST_LINE (64 * 1024)
#define MAX_FILES 4
#define LONGEST_HOLD_OFF_NS (16000 * MS)

static const char doorbell[] = "\0\n";

static struct {
    int file;
    uint64_t away_since, next_try, asked_at, welcomed_at;
    uint64_t hold_off; /* after an answer that did not come, or a refusal: there is no use in asking at once */
    unsigned unsaid;   /* messages that the socket would not take yet */
    char line[LONGEST_LINE];
    size_t length;
    int files[MAX_FILES]; /* received, and not yet claimed by a message */
    int file_count;
} contact = {.file = -1};

uint64_t socket_away_since(void) {
    return atomic_load(&shim.contact) == THERE ? 0 : contact.away_since;
}

int socket_file(bool *wants_to_write) {
    *wants_to_write = contact.unsaid != 0;
    return contact.file;
}

static void drop_files(void) {
    while (contact.file_count > 0)
        close(contact.files[--contact.file_count]);
}

static uint64_t next_retry(uint64_t now) {
    uint64_t pause = (now - contact.away_since) / 8;
    return now + least(most(pause, SOONEST_RETRY_NS), LATEST_RETRY_NS);
}

static void lose(uint64_t now, const char *why) {
    bool was_there = atomic_load(&shim.contact) == THERE;
    atomic_store(&shim.contact, AWAY);
    if (contact.file >= 0)
        file_close(contact.file);
    contact.file = -1;
    drop_files();
    contact.length = 0;
    contact.unsaid = 0;
    if (was_there || contact.away_since == 0)
        contact.away_since = now; /* a hello without an answer does not begin the grace anew */
    contact.next_try = most(now + contact.hold_off, next_retry(now));
    if (why)
        log_line(LOG_INFO, "the coordinator is away: %s", why);
}

static void hold_off(void) {
    contact.hold_off = contact.hold_off ? contact.hold_off * 2 : 1000 * MS;
    if (contact.hold_off > LONGEST_HOLD_OFF_NS)
        contact.hold_off = LONGEST_HOLD_OFF_NS;
}

/* --- out ------------------------------------------------------------------------------------------------------------ */

/* 1: sent, 0: the socket is full, -1: the connection is gone. A short line goes whole or not at all. */
static int send_line(const char *line, size_t length) {
    if (!file_is_ours(contact.file))
        return 0; /* the agent will see */
    ssize_t sent = send(contact.file, line, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == (ssize_t)length)
        return 1;
    return sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) ? 0 : -1;
}

static void flush(uint64_t now) {
    static char line[16384];
    for (unsigned message = SAY_CHANGED; message <= SAY_DETAILS && contact.file >= 0; message *= 2) {
        size_t length = sizeof doorbell - 1;
        if (!(contact.unsaid & message))
            continue;
        memcpy(line, doorbell, sizeof doorbell);
        if (message == SAY_DETAILS)
            length = wire_details(line, sizeof line, inspect_answered());
        int sent = send_line(line, length);
        if (sent < 0)
            lose(now, strerror(errno));
        if (sent > 0)
            contact.unsaid &= ~message;
    }
}

void socket_say(unsigned messages) {
    if (atomic_load(&shim.contact) != THERE)
        return; /* hello says it */
    contact.unsaid |= messages;
    flush(now_ns());
}

/* --- in ------------------------------------------------------------------------------------------------------------- */

static void welcomed(uint64_t now) {
    if (!join_waits())
        account_slot();
    contact.hold_off = 0;
    contact.welcomed_at = now;
    agent_welcomed();
    atomic_store(&shim.contact, THERE);
    log_line(LOG_INFO, "in contact with the coordinator");
    socket_say(SAY_CHANGED); /* since hello */
    agent_settled();
}

static void take_line(char *line, uint64_t now) {
    if (*line == 0)
        return; /* the doorbell: the agent looks at its page whenever it wakes */
    bool asking = atomic_load(&shim.contact) == ASKING;
    if (asking && wire_is(line, "welcome")) {
        welcomed(now);
    } else if (asking && wire_is(line, "join")) {
        if (join_client(contact.files, contact.file_count)) {
            contact.file_count = 0;
            welcomed(now);
        } else {
            hold_off();
            lose(now, "it sent no client page with the devices of this process");
        }
    } else if (wire_is(line, "error")) {
        log_line(LOG_ERROR, "the coordinator refuses this process: %.500s", line);
        hold_off();
        lose(now, NULL);
        agent_settled();
    }
}

static ssize_t receive(void) {
    char control[CMSG_SPACE(sizeof(int) * MAX_FILES)];
    struct iovec space = {contact.line + contact.length, LONGEST_LINE - 1 - contact.length};
    struct msghdr message = {
        .msg_iov = &space, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t bytes = recvmsg(contact.file, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0)
        return bytes;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t files = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < files; i++) {
            int file;
            memcpy(&file, CMSG_DATA(part) + i * sizeof(int), sizeof file);
            if (contact.file_count < MAX_FILES)
                contact.files[contact.file_count++] = file;
            else
                close(file);
        }
    }
    return bytes;
}

static void read_lines(uint64_t now) {
    while (contact.file >= 0) {
        ssize_t bytes = receive();
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0 && errno == EAGAIN)
            return;
        if (bytes <= 0) {
            lose(now, bytes == 0 ? "end of file" : strerror(errno));
            return;
        }
        contact.length += (size_t)bytes;
        char *start = contact.line, *end;
        while (contact.file >= 0 && (end = memchr(start, '\n', contact.length - (size_t)(start - contact.line)))) {
            *end = 0;
            take_line(start, now);
            start = end + 1;
        }
        if (contact.file < 0)
            return;
        contact.length -= (size_t)(start - contact.line);
        memmove(contact.line, start, contact.length);
        drop_files(); /* those that no line of this batch has claimed */
        if (contact.length >= LONGEST_LINE - 1)
            lose(now, "an over-long line");
    }
}

/* --- connecting ------------------------------------------------------------------------------------------------------ */

static bool say_hello(void) {
    static char line[LONGEST_LINE];
    size_t length = wire_hello(line, sizeof line);
    int files[2] = {shim.page_file, join_file()};
    char control[CMSG_SPACE(sizeof files)] = {0};
    struct iovec text = {line, length};
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof files);
    memcpy(CMSG_DATA(part), files, sizeof files);
    return length > 0 && sendmsg(contact.file, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length;
}

static void try_to_connect(uint64_t now) {
    if (contact.away_since == 0)
        contact.away_since = now;
    contact.next_try = next_retry(now);
    contact.file = connect_anywhere();
    if (contact.file < 0) {
        agent_settled(); /* the program need not wait for what is not there */
        return;
    }
    contact.asked_at = now;
    atomic_store(&shim.contact, ASKING);
    if (!shim_new_page() || !say_hello())
        lose(now, "hello could not be sent");
}

uint64_t socket_step(uint64_t now) {
    if (contact.file >= 0)
        read_lines(now);
    flush(now);
    switch (atomic_load(&shim.contact)) {
    case AWAY:
        if (now >= contact.next_try)
            try_to_connect(now);
        return atomic_load(&shim.contact) == AWAY ? contact.next_try : now + ANSWER_NS;
    case ASKING:
        if (now < contact.asked_at + ANSWER_NS)
            return contact.asked_at + ANSWER_NS;
        hold_off();
        lose(now, "it did not answer");
        agent_settled();
        return contact.next_try;
    default: {
        uint64_t heartbeat = GET(the_page()->orders.heartbeat_ns);
        heartbeat = heartbeat > contact.welcomed_at ? heartbeat : contact.welcomed_at;
        if (now < heartbeat + STALE_NS)
            return heartbeat + STALE_NS;
        lose(now, "its heartbeat has stopped");
        return contact.next_try;
    }
    }
}

void socket_start_over(void) {
    lose(now_ns(), "the program has closed its descriptors");
    join_forget();
    contact.hold_off = contact.next_try = 0;
}

void socket_after_fork(void) {
    contact.file = -1;
    drop_files();
    contact.away_since = contact.next_try = contact.hold_off = 0;
    contact.unsaid = 0;
    contact.length = 0;
}
