/* Fuzz target for the shim's hello, its details, and its reader of the coordinator's messages.
 * The input has lines NAME=VALUE for the environment and, after an empty line, the lines of the coordinator.
 * Any environment must give a hello of one line in JSON and UTF-8, and only a welcome may be taken for a welcome. */
#include <stdlib.h>

#include "../../native/shim/agent/environment.c"
#include "../../native/shim/channel/messages.c"
#include "../../native/shim/coordinator/details.c"

struct shim shim;

void log_message(enum level level, const char *format, ...) {
    (void)level, (void)format;
}
bool log_enabled(enum level level) {
    return level == LOG_ERROR;
}
bool driver_is_simulated(void) {
    return false;
}
uint64_t now_ns(void) {
    return 1;
}

const struct memory_mode *memory_mode_by_name(const char *name) {
    static const struct memory_mode mode = {.name = "unified"};
    return strcmp(name, mode.name) == 0 ? &mode : NULL;
}

/* The values of the environment also stand for the names that programs look up. */
int unhooked_names(char names[MAX_UNHOOKED][MAX_UNHOOKED_BYTES]) {
    for (int i = 0; i < MAX_UNHOOKED; i++)
        snprintf(names[i], MAX_UNHOOKED_BYTES, "%s", shim.environment.label);
    return MAX_UNHOOKED;
}
void ledger_sum(struct ledger_totals *sum) {
    for (int kind = 0; kind < MEMORY_KINDS; kind++)
        sum->number[kind] = sum->bytes[kind] = UINT64_MAX;
}
uint64_t graph_bytes(void) {
    return UINT64_MAX;
}

static void must(bool condition) {
    if (!condition)
        abort();
}

/* Checks one JSON string at `at`, and returns its end. */
static const char *string(const char *at) {
    must(*at++ == '"');
    while (*at != '"') {
        const unsigned char *text = (const unsigned char *)at;
        must(*text >= 0x20 && *text != 0x7f);
        if (*at == '\\') {
            at++;
            must(*at == '"' || *at == '\\' || *at == 'u');
            if (*at == 'u')
                for (int i = 1; i <= 4; i++)
                    must(strchr("0123456789abcdef", at[i]) && at[i]);
            at += *at == 'u' ? 5 : 1;
            continue;
        }
        int bytes = utf8_length(text);
        must(bytes > 0);
        at += bytes;
    }
    return at + 1;
}

/* Checks one JSON value of a kind that hello has. */
static const char *value(const char *at) {
    if (*at == '"')
        return string(at);
    if (*at == '{' || *at == '[') {
        char end = *at == '{' ? '}' : ']';
        for (at++; *at != end; at += *at == ',') {
            if (end == '}') {
                at = string(at);
                must(*at++ == ':');
            }
            at = value(at);
            must(*at == ',' || *at == end);
        }
        return at + 1;
    }
    size_t length = strspn(at, "0123456789truefals");
    must(length > 0);
    return at + length;
}

static void check_hello(void) {
    static char line[64 * 1024];
    size_t length = message_hello(line, sizeof line);
    must(length > 0 && length < sizeof line && strlen(line) == length);
    const char *end = value(line);
    must(*end == '\n' && end + 1 == line + length);
    must(is_identity(shim.client_id));
    must(message_has_type(line, "hello") && !message_has_type(line, "welcome"));
    must(message_hello(line, 100) == 0); /* a line without room is not truncated */
}

static void check_details(void) {
    static char line[16384]; /* size of the agent's buffer: a byte of a name may take six in JSON */
    shim.mode = memory_mode_by_name("unified");
    answered_seq = UINT32_MAX;
    size_t length = message_details(line, sizeof line);
    must(length > 0 && length < sizeof line && strlen(line) == length);
    const char *end = value(line);
    must(*end == '\n' && end + 1 == line + length);
}

/* The values of the environment also stand for the driver's names of devices. */
static void check_devices(const char *name) {
    shim.device_count = 2;
    snprintf(shim.devices[0].name, sizeof shim.devices[0].name, "%s", name);
    snprintf(shim.devices[1].uuid, sizeof shim.devices[1].uuid, "%s", name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *names[] = {"GPUSHARE_CLIENT", "GPUSHARE_TOKEN",    "GPUSHARE_LABEL", "GPUSHARE_QUOTA",
                                  "GPUSHARE_SOCKET", "GPUSHARE_SIMULATE", "XDG_RUNTIME_DIR"};
    char *text = strndup((const char *)data, size), *rest = text;
    must(text != NULL);
    memset(&shim, 0, sizeof shim);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    while (rest && *rest && *rest != '\n') {
        char *line = strsep(&rest, "\n"), *equals = strchr(line, '=');
        if (!equals)
            continue;
        *equals = 0;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(line, names[i]) == 0)
                setenv(names[i], equals + 1, 1);
        check_devices(equals + 1);
    }
    environment_read();
    must(shim.environment.socket_count >= 1 && shim.environment.socket_count <= 2);
    check_hello();
    check_details();
    if (rest && *rest) {
        char *line = strdup(rest + 1); /* of exact size, so that a read beyond its end is found */
        must(line != NULL);
        if (message_has_type(line, "welcome"))
            must(strstr(line, "\"type\"") && strstr(line, "\"welcome\""));
        must(!(message_has_type(line, "welcome") && message_has_type(line, "join")));
        free(line);
    }
    free(text);
    return 0;
}
