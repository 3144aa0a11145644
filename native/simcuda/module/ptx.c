/* The parser of PTX text: entry points with their parameters, and variables. */
#include "module/ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VARIABLE_BYTES (1ull << 40) /* of a variable: more than any device has */

static const char *skip(const char *text) {
    for (;;) {
        while (isspace((unsigned char)*text))
            text++;
        if (text[0] == '/' && text[1] == '/') {
            text += strcspn(text, "\n");
        } else if (text[0] == '/' && text[1] == '*') {
            const char *end = strstr(text + 2, "*/");
            text = end ? end + 2 : text + strlen(text);
        } else {
            return text;
        }
    }
}

static int is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

/* Find a directive as a whole word. */
static const char *find(const char *text, const char *directive) {
    size_t n = strlen(directive);
    while ((text = strstr(text, directive)) && is_word(text[n]))
        text += n;
    return text;
}

static const char *copy_word(const char *text, char word[SIM_MAX_NAME]) {
    size_t n = 0;
    for (; is_word(*text); text++)
        if (n < SIM_MAX_NAME - 1)
            word[n++] = *text;
    word[n] = 0;
    return text;
}

/* Parse ".align 4 .b8 name[12]" or ".u64 name": bytes and alignment. Return the end of the declaration. */
static const char *declaration(const char *text, char name[SIM_MAX_NAME], size_t *bytes, size_t *alignment) {
    size_t element = 0;
    *alignment = 0;
    name[0] = 0;
    while (*(text = skip(text)) == '.') {
        char word[SIM_MAX_NAME];
        text = copy_word(text + 1, word);
        if (strcmp(word, "align") == 0) {
            char *end;
            *alignment = strtoul(skip(text), &end, 10);
            text = end;
        } else if (strchr("usfb", word[0]) && isdigit((unsigned char)word[1])) {
            element = strtoul(word + 1, NULL, 10) / 8;
        }
    }
    text = copy_word(text, name);
    *bytes = element;
    while (*(text = skip(text)) == '[') {
        char *end;
        if (__builtin_mul_overflow(*bytes, strtoul(text + 1, &end, 10), bytes) || *bytes > MAX_VARIABLE_BYTES)
            *bytes = MAX_VARIABLE_BYTES;
        text = end + strcspn(end, "]");
        text += *text == ']';
    }
    if (!*alignment || *alignment > MAX_VARIABLE_BYTES)
        *alignment = element ? element : 1;
    return text;
}

int ptx_is_text(const char *image) {
    image = skip(image);
    return strncmp(image, ".version", 8) == 0;
}

const char *ptx_next_entry(const char *text, struct ptx_entry *entry) {
    text = find(text, ".entry");
    if (!text)
        return NULL;
    memset(entry, 0, sizeof *entry);
    text = copy_word(skip(text + 6), entry->name);
    text = skip(text);
    if (*text != '(')
        return text;
    size_t end = 0;
    for (text = skip(text + 1); *text && *text != ')'; text = skip(text + (*text == ','))) {
        char name[SIM_MAX_NAME];
        size_t bytes, alignment;
        const char *next = declaration(text, name, &bytes, &alignment);
        if (next == text)
            break;
        text = skip(next);
        end = (end + alignment - 1) / alignment * alignment;
        bytes =
            /* the driver would refuse it; here no program can launch it */
            bytes < PTX_MAX_BYTES ? bytes : PTX_MAX_BYTES;
        end = end < PTX_MAX_BYTES ? end : PTX_MAX_BYTES;
        if (entry->count < PTX_MAX_PARAMS) {
            entry->size[entry->count] = bytes;
            entry->offset[entry->count] = end;
        }
        entry->count++;
        end += bytes;
    }
    return text;
}

const char *ptx_next_global(const char *text, char name[SIM_MAX_NAME], size_t *bytes) {
    size_t alignment;
    /* ".ld.global" and the like are instructions: a variable's directive stands after a space or at the beginning of
     * a line */
    const char *start = text;
    while ((text = find(text, ".global")) && text != start && !isspace((unsigned char)text[-1]))
        text += 7;
    return text ? declaration(text + 7, name, bytes, &alignment) : NULL;
}
