/* The messages of the coordinator's socket, as far as a process writes them; of those it reads only the type. */
#include "shim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_TEXT_CHARACTERS 1024 /* characters of a text field */

struct writer {
    char *line;
    size_t room, length; /* length >= room: it did not fit */
};

static void append(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct writer *writer, const char *format, ...) {
    va_list arguments;
    size_t left = writer->length < writer->room ? writer->room - writer->length : 0;
    va_start(arguments, format);
    int length = vsnprintf(left ? writer->line + writer->length : NULL, left, format, arguments);
    va_end(arguments);
    writer->length += length > 0 ? (size_t)length : 0;
}

/* The bytes of the UTF-8 character at `text`, or 0 if there is none. */
static int utf8_length(const unsigned char *text) {
    int more = text[0] < 0x80   ? 0
               : text[0] < 0xc2 ? -1
               : text[0] < 0xe0 ? 1
               : text[0] < 0xf0 ? 2
               : text[0] < 0xf5 ? 3
                                : -1;
    for (int i = 1; i <= more; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
        return 0;
    return more + 1;
}

/* What comes from the environment may hold anything; the line must be one JSON value all the same. */
static void append_string(struct writer *writer, const char *text) {
    const unsigned char *at = (const unsigned char *)(text);
    append(writer, "\"");
    for (int i = 0; *at && i < MAX_TEXT_CHARACTERS; i++) {
        int bytes = utf8_length(at);
        if (bytes == 0)
            append(writer, "?");
        else if (*at < 0x20 || *at == 0x7f)
            append(writer, "\\u%04x", *at);
        else if (*at == '"' || *at == '\\')
            append(writer, "\\%c", *at);
        else
            append(writer, "%.*s", bytes, (const char *)at);
        at += bytes ? bytes : 1;
    }
    append(writer, "\"");
}

static void append_text(struct writer *writer, const char *name, const char *text) {
    append(writer, ",\"%s\":", name);
    append_string(writer, text);
}

size_t message_hello(char *line, size_t room) {
    struct writer writer = {line, room, 0};
    append(&writer, "{\"type\":\"hello\",\"wire\":1,\"pid\":%d", (int)getpid());
    append_text(&writer, "client", shim.client_id);
    append_text(&writer, "token", shim.token);
    append_text(&writer, "label", shim.environment.label);
    append_text(&writer, "quota", shim.environment.quota);
    append(&writer, ",\"devices\":[");
    for (int i = 0; i < shim.device_count; i++) {
        append(&writer, "%s{\"memory\":%llu", i ? "," : "", (unsigned long long)shim.devices[i].memory);
        append_text(&writer, "uuid", shim.devices[i].uuid);
        append_text(&writer, "name", shim.devices[i].name);
        append(&writer, "}");
    }
    append(&writer, "],\"simulated\":%s}\n", shim.simulated ? "true" : "false");
    return writer.length < room ? writer.length : 0;
}

/* For diagnostics: what the ledger holds, by kind, and the names of inspect.c. */
size_t message_details(char *line, size_t room, uint32_t seq) {
    static const char *const kinds[MEMORY_KINDS] = {
        [MEMORY_REDIRECTED] = "redirected", [MEMORY_MANAGED] = "managed", [MEMORY_DEVICE] = "device",
        [MEMORY_POOLED] = "pooled",         [MEMORY_HANDLE] = "physical", [MEMORY_ARRAY] = "array",
        [MEMORY_SWAPPED] = "swapped",       [MEMORY_GRAPH] = "graph",
    };
    struct writer writer = {line, room, 0};
    struct ledger_totals sum = {0};
    char names[MAX_UNHOOKED][MAX_UNHOOKED_BYTES];
    int count = unhooked_names(names);
    const char *separator = "";
    ledger_sum(&sum);
    sum.bytes[MEMORY_GRAPH] = graph_bytes();
    append(&writer, "{\"type\":\"details\",\"seq\":%u", seq);
    append_text(&writer, "memory_mode", shim.mode->name);
    append(&writer, ",\"ledger\":[");
    for (int kind = 0; kind < MEMORY_KINDS; kind++) {
        if (!sum.number[kind] && !sum.bytes[kind])
            continue;
        append(&writer, "%s{\"number\":%llu,\"bytes\":%llu", separator, (unsigned long long)sum.number[kind],
               (unsigned long long)sum.bytes[kind]);
        append_text(&writer, "kind", kinds[kind] ? kinds[kind] : "other");
        append(&writer, "}");
        separator = ",";
    }
    append(&writer, "],\"unhooked\":[");
    for (int i = 0; i < count; i++) {
        append(&writer, "%s", i ? "," : "");
        append_string(&writer, names[i]);
    }
    append(&writer, "]}\n");
    return writer.length < room ? writer.length : 0;
}

/* The type is the only field of that name in what the coordinator sends to processes. */
bool message_has_type(const char *line, const char *type) {
    const char *at = strstr(line, "\"type\"");
    if (!at)
        return false;
    at += strlen("\"type\"");
    at += strspn(at, " \t");
    if (*at++ != ':')
        return false;
    at += strspn(at, " \t");
    size_t length = strlen(type);
    return *at == '"' && strncmp(at + 1, type, length) == 0 && at[1 + length] == '"';
}
