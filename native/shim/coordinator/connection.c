/* The connection with the coordinator: connecting, hello and its answer, messages out. */
#include "channel/channel.h"
#include "coordinator/coordinator.h"
#include "memory/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_LINE_BYTES (64 * 1024)
#define MAX_RECEIVED_FDS 4
#define MAX_RECONNECT_DELAY_NS (16000 * NS_PER_MS)

static const char doorbell[] = "\0\n";

static struct {
    int file;
    uint64_t away_since, next_attempt_at, asked_at, welcomed_at;
    /* after a refusal, an attempt at once would fail as well */
    uint64_t reconnect_delay;
    char line[MAX_LINE_BYTES];
    size_t length;
    int files[MAX_RECEIVED_FDS]; /* received, and not yet claimed by a message */
    int file_count;
    uint32_t count; /* connections that the coordinator has welcomed */
} connection = {.file = -1};

static _Atomic uint32_t welcome_done; /* the answer to the first hello has come, or will not; a futex */

static void end_welcome_wait(void) {
    atomic_store(&welcome_done, 1);
    futex_wake_all((uint32_t *)&welcome_done);
}

void connection_wait_for_welcome(void) {
    uint64_t now = now_ns(), end = now + ANSWER_NS + 100 * NS_PER_MS;
    for (; now < end && !atomic_load(&welcome_done); now = now_ns())
        futex_wait((uint32_t *)&welcome_done, 0, end - now);
}

uint32_t connection_count(void) {
    return connection.count;
}

uint64_t connection_away_since(void) {
    return atomic_load(&shim.link) == LINK_CONNECTED ? 0 : connection.away_since;
}

int connection_fd(bool *wants_to_write) {
    *wants_to_write = atomic_load(&shim.link) == LINK_CONNECTED && !outbox_is_empty();
    return connection.file;
}

static void drop_files(void) {
    while (connection.file_count > 0)
        close(connection.files[--connection.file_count]);
}

static uint64_t next_attempt(uint64_t now) {
    uint64_t pause = (now - connection.away_since) / 8;
    return now + min_u64(max_u64(pause, MIN_RETRY_NS), MAX_RETRY_NS);
}

static void on_disconnect(uint64_t now, const char *why) {
    bool was_there = atomic_load(&shim.link) == LINK_CONNECTED;
    atomic_store(&shim.link, LINK_DISCONNECTED);
    if (connection.file >= 0)
        fd_close(connection.file);
    connection.file = -1;
    drop_files();
    connection.length = 0;
    outbox_take();
    move_request_withdraw();
    if (was_there || connection.away_since == 0)
        connection.away_since = now; /* a hello without an answer does not restart the grace */
    connection.next_attempt_at = max_u64(now + connection.reconnect_delay, next_attempt(now));
    if (why)
        log_message(LOG_INFO, "disconnected from the coordinator: %s", why);
}

static void increase_reconnect_delay(void) {
    connection.reconnect_delay = connection.reconnect_delay ? connection.reconnect_delay * 2 : 1000 * NS_PER_MS;
    if (connection.reconnect_delay > MAX_RECONNECT_DELAY_NS)
        connection.reconnect_delay = MAX_RECONNECT_DELAY_NS;
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

/* Return 1: sent, 0: the socket is full, -1: the connection has ended. A short line is sent whole or not at all. */
static int send_line(const char *line, size_t length) {
    if (!fd_is_ours(connection.file))
        return 0; /* the agent will find it out */
    ssize_t sent = send(connection.file, line, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == (ssize_t)length)
        return 1;
    return sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) ? 0 : -1;
}

/* Messages that could not be sent go back to the outbox. Without a connection nothing stays there, because the
 * answer to hello posts a change. */
void connection_flush(uint64_t now) {
    static char line[16384];
    unsigned messages = outbox_take();
    if (atomic_load(&shim.link) != LINK_CONNECTED)
        return;
    for (unsigned message = OUTBOX_CHANGED; message < OUTBOX_END && connection.file >= 0; message *= 2) {
        size_t length = sizeof doorbell - 1;
        if (!(messages & message))
            continue;
        memcpy(line, doorbell, sizeof doorbell);
        if (message == OUTBOX_DETAILS)
            length = message_details(line, sizeof line);
        if (message == OUTBOX_MOVED)
            length = message_moved(line, sizeof line);
        int sent = send_line(line, length);
        if (sent < 0)
            on_disconnect(now, strerror(errno));
        else if (sent == 0)
            outbox_put(message);
    }
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static void on_welcome(uint64_t now) {
    if (!client_page_is_pending())
        account_update_slot();
    connection.reconnect_delay = 0;
    connection.welcomed_at = now;
    connection.count++;
    atomic_store(&shim.link, LINK_CONNECTED);
    log_message(LOG_INFO, "connected with the coordinator");
    outbox_put(OUTBOX_CHANGED); /* the changes since hello */
    connection_flush(now_ns());
    end_welcome_wait();
}

static void on_room_refused(const char *line) {
    char reason[700];
    message_reason(line, reason, sizeof reason);
    if (atomic_load(&shim.waiting))
        log_message(LOG_ERROR, "%s", reason);
    atomic_fetch_add(&shim.room_refusals, 1);
    futex_wake_all(&shim.gate);
}

static void on_line(char *line, uint64_t now) {
    if (*line == 0)
        return; /* the doorbell: the agent reads its page whenever it wakes */
    bool asking = atomic_load(&shim.link) == LINK_CONNECTING;
    if (asking && message_has_type(line, "welcome")) {
        on_welcome(now);
    } else if (asking && message_has_type(line, "join")) {
        if (client_page_accept(connection.files, connection.file_count)) {
            connection.file_count = 0;
            on_welcome(now);
        } else {
            increase_reconnect_delay();
            on_disconnect(now, "no client page with the devices of this process came");
        }
    } else if (message_has_type(line, "error")) {
        log_message(LOG_ERROR,
                    "The coordinator has refused this process, which therefore takes turns without it: %.500s", line);
        increase_reconnect_delay();
        on_disconnect(now, NULL);
        end_welcome_wait();
    } else if (message_has_type(line, "room_refused")) {
        on_room_refused(line);
    } else {
        move_request_read(line);
    }
}

static ssize_t receive(void) {
    char control[CMSG_SPACE(sizeof(int) * MAX_RECEIVED_FDS)];
    struct iovec space = {connection.line + connection.length, MAX_LINE_BYTES - 1 - connection.length};
    struct msghdr message = {
        .msg_iov = &space, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t bytes = recvmsg(connection.file, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0)
        return bytes;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t files = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < files; i++) {
            int file;
            memcpy(&file, CMSG_DATA(part) + i * sizeof(int), sizeof file);
            if (connection.file_count < MAX_RECEIVED_FDS)
                connection.files[connection.file_count++] = file;
            else
                close(file);
        }
    }
    return bytes;
}

static void read_lines(uint64_t now) {
    while (connection.file >= 0) {
        ssize_t bytes = receive();
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0 && errno == EAGAIN)
            return;
        if (bytes <= 0) {
            on_disconnect(now, bytes == 0 ? "end of file" : strerror(errno));
            return;
        }
        connection.length += (size_t)bytes;
        char *start = connection.line, *end;
        while (connection.file >= 0 &&
               (end = memchr(start, '\n', connection.length - (size_t)(start - connection.line)))) {
            *end = 0;
            on_line(start, now);
            start = end + 1;
        }
        if (connection.file < 0)
            return;
        connection.length -= (size_t)(start - connection.line);
        memmove(connection.line, start, connection.length);
        drop_files(); /* descriptors that no line of this batch has claimed */
        if (connection.length >= MAX_LINE_BYTES - 1)
            on_disconnect(now, "a line was too long");
    }
}

/* --- connecting --------------------------------------------------------------------------------------------------- */

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        log_once(LOG_ERROR,
                 "The path of the coordinator's socket is too long, so this process takes turns without a coordinator. "
                 "Set GPUSHARE_SOCKET to a shorter path: %s",
                 path);
        return -1;
    }
    strcpy(address.sun_path, path);
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0)
        return -1;
    if (connect(file, (struct sockaddr *)&address, sizeof address) != 0) {
        close(file);
        return -1;
    }
    return fd_own(file);
}

/* Any user may make a folder in /tmp: it must be this user's, and closed to other users. */
static bool is_own_folder(const char *socket_path) {
    char folder[sizeof shim.environment.sockets[0]];
    struct stat status;
    snprintf(folder, sizeof folder, "%s", socket_path);
    *strrchr(folder, '/') = 0;
    return lstat(folder, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == getuid() &&
           !(status.st_mode & 077);
}

int connection_open(void) {
    const struct environment *environment = &shim.environment;
    int file = -1;
    for (int i = 0; i < environment->socket_count && file < 0; i++)
        if (i == 0 || !environment->socket_in_tmp || is_own_folder(environment->sockets[i]))
            file = connect_to(environment->sockets[i]);
    return file;
}

static bool send_hello(void) {
    static char line[MAX_LINE_BYTES];
    size_t length = message_hello(line, sizeof line);
    int files[2] = {shim.page_fd, client_page_fd()};
    char control[CMSG_SPACE(sizeof files)] = {0};
    struct iovec text = {line, length};
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof files);
    memcpy(CMSG_DATA(part), files, sizeof files);
    return length > 0 && sendmsg(connection.file, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length;
}

static void try_to_connect(uint64_t now) {
    if (connection.away_since == 0)
        connection.away_since = now;
    connection.next_attempt_at = next_attempt(now);
    connection.file = connection_open();
    if (connection.file < 0) {
        end_welcome_wait(); /* no coordinator will answer, so the program need not wait */
        return;
    }
    connection.asked_at = now;
    atomic_store(&shim.link, LINK_CONNECTING);
    if (!page_replace() || !send_hello())
        on_disconnect(now, "hello could not be sent");
}

uint64_t connection_poll(uint64_t now) {
    if (connection.file >= 0)
        read_lines(now);
    connection_flush(now);
    switch (atomic_load(&shim.link)) {
    case LINK_DISCONNECTED:
        if (now >= connection.next_attempt_at)
            try_to_connect(now);
        return atomic_load(&shim.link) == LINK_DISCONNECTED ? connection.next_attempt_at : now + ANSWER_NS;
    case LINK_CONNECTING:
        if (now < connection.asked_at + ANSWER_NS)
            return connection.asked_at + ANSWER_NS;
        end_welcome_wait();
        if (now < connection.asked_at + MAX_ANSWER_NS)
            return connection.asked_at + MAX_ANSWER_NS;
        on_disconnect(now, "hello was not answered");
        return connection.next_attempt_at;
    default: {
        uint64_t heartbeat = PAGE_LOAD(the_page()->control.heartbeat_ns);
        heartbeat = heartbeat > connection.welcomed_at ? heartbeat : connection.welcomed_at;
        if (now < heartbeat + STALE_NS)
            return heartbeat + STALE_NS;
        on_disconnect(now, "the heartbeat has stopped");
        return connection.next_attempt_at;
    }
    }
}

void connection_reopen(const char *why) {
    on_disconnect(now_ns(), why);
    client_page_discard();
    connection.reconnect_delay = connection.next_attempt_at = 0;
}

void connection_after_fork(void) {
    connection.file = -1;
    connection.count = 0;
    atomic_store(&welcome_done, 0);
    drop_files();
    connection.away_since = connection.next_attempt_at = connection.reconnect_delay = 0;
    outbox_take();
    move_request_withdraw();
    connection.length = 0;
}
