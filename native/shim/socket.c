/* The way to the coordinator: connecting, hello and its answer, messages out. Only the agent opens and closes the
 * connection; a thread at the gate may send "wants" over it, under the lock, so that the descriptor it uses is still the
 * connection's. */
#include "shim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONGEST_LINE (64 * 1024)
#define MAX_FILES (1 + MAX_DEVICES)
#define LONGEST_HOLD_OFF_NS (16000 * MS)

static struct {
    pthread_mutex_t lock;
    int file;
    uint64_t away_since, next_try, asked_at, welcomed_at;
    uint64_t hold_off; /* after an answer that did not come, or a refusal: there is no use in asking at once */
    unsigned unsaid;   /* messages that the socket would not take yet */
    _Atomic bool wants_unsaid;
    char line[LONGEST_LINE];
    size_t length;
    uint32_t word_at_hello; /* the gate's */
    int files[MAX_FILES];   /* received, and not yet claimed by a message */
    int file_count;
} contact = {.lock = PTHREAD_MUTEX_INITIALIZER, .file = -1};

uint64_t socket_away_since(void) {
    return contact.away_since;
}

int socket_file(bool *wants_to_write) {
    *wants_to_write = contact.unsaid != 0;
    return contact.file;
}

static void set_contact(enum contact state) {
    pthread_mutex_lock(&contact.lock);
    atomic_store(&shim.contact, state);
    pthread_mutex_unlock(&contact.lock);
}

static void drop_files(void) {
    while (contact.file_count > 0)
        close(contact.files[--contact.file_count]);
}

static void lose(uint64_t now, const char *why) {
    bool was_there = atomic_load(&shim.contact) == THERE;
    pthread_mutex_lock(&contact.lock);
    atomic_store(&shim.contact, AWAY);
    if (was_there && is_running()) { /* else what it runs by was seen before hello */
        lockmode_hold(true);         /* before the coordinator can see that we are out of reach */
        agent_keeps_opening();
    }
    if (contact.file >= 0)
        file_close(contact.file);
    contact.file = -1;
    pthread_mutex_unlock(&contact.lock);
    drop_files();
    lockmode_contact(false);
    contact.length = 0;
    contact.unsaid = 0;
    if (was_there || contact.away_since == 0)
        contact.away_since = now; /* a hello without an answer does not begin the grace anew */
    contact.next_try = now + (contact.hold_off > RETRY_NS ? contact.hold_off : RETRY_NS);
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

static const char wants[] = "{\"type\":\"wants\"}\n", unwants[] = "{\"type\":\"unwants\"}\n";

bool socket_say_wants(void) {
    pthread_mutex_lock(&contact.lock);
    bool said = atomic_load(&shim.contact) == THERE && send_line(wants, sizeof wants - 1) > 0;
    pthread_mutex_unlock(&contact.lock);
    if (!said)
        atomic_store(&contact.wants_unsaid, true);
    return said;
}

/* If the socket is full the turn comes and is given up as idle. */
void socket_say_unwants(void) {
    pthread_mutex_lock(&contact.lock);
    if (atomic_load(&shim.contact) == THERE)
        send_line(unwants, sizeof unwants - 1);
    pthread_mutex_unlock(&contact.lock);
}

/* If the socket is full it goes without: the coordinator looks at the page anyway, only later. */
static void say_now(const char *line, size_t length) {
    pthread_mutex_lock(&contact.lock);
    if (atomic_load(&shim.contact) == THERE)
        send_line(line, length);
    pthread_mutex_unlock(&contact.lock);
}

void socket_say_short(void) {
    char line[96];
    say_now(line, wire_plain(line, sizeof line, "short"));
}

void socket_say_restored(uint32_t epoch) {
    char line[96];
    say_now(line, wire_epoch(line, sizeof line, "restored", epoch));
}

static void flush(uint64_t now) {
    if (atomic_load(&shim.contact) != THERE)
        return;
    struct gpushare_page *page = the_page();
    if (atomic_exchange(&contact.wants_unsaid, false) && __atomic_load_n(&page->report.waiting, __ATOMIC_SEQ_CST))
        contact.unsaid |= SAY_WANTS; /* and not when the gate has opened since, in lock-file mode */
    for (unsigned message = SAY_WANTS; message <= SAY_BUSY; message *= 2) {
        static char line[16384]; /* the agent's */
        size_t length = sizeof wants - 1;
        /* In lock-file mode nobody heard it, and this may be another closing, whose work is still to be let through. */
        if (message == SAY_EVICTING && !memory_moving())
            contact.unsaid &= ~message;
        if (!(contact.unsaid & message))
            continue;
        memcpy(line, wants, sizeof wants);
        if (message == SAY_EVICTING)
            length = wire_epoch(line, sizeof line, "evicting", epoch_of(gate_word(page)));
        if (message == SAY_DRAINED)
            length = wire_epoch(line, sizeof line, "drained", GET(page->report.drained_epoch));
        if (message == SAY_IDLE)
            length = wire_epoch(line, sizeof line, "idle", epoch_of(gate_word(page)));
        if (message == SAY_BUSY)
            length = wire_epoch(line, sizeof line, "busy", epoch_of(gate_word(page)));
        if (message == SAY_DECLINED)
            length = wire_plain(line, sizeof line, "declined");
        if (message == SAY_DETAILS)
            length = wire_details(line, sizeof line, inspect_answered());
        pthread_mutex_lock(&contact.lock);
        int sent = send_line(line, length);
        pthread_mutex_unlock(&contact.lock);
        if (sent < 0) {
            lose(now, strerror(errno));
            return;
        }
        if (sent > 0)
            contact.unsaid &= ~message;
    }
}

void socket_say(unsigned messages) {
    if (messages & (SAY_IDLE | SAY_BUSY))
        contact.unsaid &= ~(unsigned)(SAY_IDLE | SAY_BUSY); /* the last one counts */
    contact.unsaid |= messages;
    flush(now_ns());
}

/* --- in ------------------------------------------------------------------------------------------------------------- */

static void welcomed(uint64_t now) {
    struct gpushare_page *page = the_page();
    account_slot();
    contact.hold_off = 0;
    contact.welcomed_at = now;
    set_contact(THERE);
    lockmode_end();
    futex_wake_all(&page->orders.gate); /* threads that did not go by an opening before, see agent_has_seen */
    log_line(LOG_INFO, "in contact with the coordinator");
    if (__atomic_load_n(&page->report.waiting, __ATOMIC_SEQ_CST))
        contact.unsaid |= SAY_WANTS;
    uint32_t word = gate_word(page);
    if (is_closing(word) && GET(page->report.drained_epoch) == epoch_of(word))
        contact.unsaid |= SAY_DRAINED; /* drained while nobody was there to hear it */
    agent_settled();
}

static void take_line(char *line, uint64_t now) {
    if (*line == 0)
        return; /* the doorbell: the agent looks at its page whenever it wakes */
    bool asking = atomic_load(&shim.contact) == ASKING;
    if (asking && wire_is(line, "welcome")) {
        welcomed(now);
    } else if (asking && wire_is(line, "join")) {
        if (join_client(contact.files, contact.file_count, contact.word_at_hello)) {
            contact.file_count = 0;
            welcomed(now);
        } else {
            hold_off();
            lose(now, "it sent descriptors that are not a client page and this process's locks");
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
        drop_files(); /* whatever no line of this batch has claimed */
        if (contact.length >= LONGEST_LINE - 1)
            lose(now, "an over-long line");
    }
}

/* --- connecting ------------------------------------------------------------------------------------------------------ */

static bool say_hello(void) {
    static char line[LONGEST_LINE];
    contact.word_at_hello = agent_gate_word();
    size_t length = wire_hello(line, sizeof line, epoch_of(contact.word_at_hello), is_running());
    int files[2 + MAX_DEVICES] = {shim.page_file, shim.client_file}, count = 2;
    for (int i = 0; i < shim.device_count; i++)
        files[count++] = shim.devices[i].lock;
    char control[CMSG_SPACE(sizeof files)] = {0};
    struct iovec text = {line, length};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = control};
    message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(part), files, sizeof(int) * (size_t)count);
    return length > 0 && sendmsg(contact.file, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length;
}

static void try_to_connect(uint64_t now) {
    contact.next_try = now + RETRY_NS;
    if (contact.away_since == 0)
        contact.away_since = now;
    int file = connect_anywhere();
    if (file < 0) {
        agent_settled(); /* the program need not wait for what is not there */
        return;
    }
    /* From here until its answer nobody but the agent opens the gate: hello says whether it is open. */
    relay_pause();
    bool ready = lockmode_ready(now);
    if (ready) {
        relay_forget();
        set_contact(ASKING);
    }
    relay_go_on();
    if (!ready) {
        file_close(file);
        return;
    }
    pthread_mutex_lock(&contact.lock);
    contact.file = file;
    pthread_mutex_unlock(&contact.lock);
    lockmode_contact(true);
    contact.asked_at = now;
    if (!say_hello())
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
            return NEVER;
        lose(now, "its heartbeat has stopped");
        return contact.next_try;
    }
    }
}

void socket_start_over(void) {
    lose(now_ns(), "the program has closed its descriptors");
    join_drop_old();
    contact.hold_off = contact.next_try = 0;
}

void socket_after_fork(void) {
    pthread_mutex_init(&contact.lock, NULL);
    contact.file = -1;
    drop_files();
    contact.away_since = contact.next_try = contact.hold_off = 0;
    contact.unsaid = 0;
    atomic_store(&contact.wants_unsaid, false);
    contact.length = 0;
}
