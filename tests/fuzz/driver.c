/* Replacement of libFuzzer for machines without clang, without a measurement of coverage.
 * The inputs are seeds, their mutations, and mutations of their mixtures; the same NUMBER gives the same inputs.
 * Usage: TARGET RUNS NUMBER CRASHES FILE…
 * An input that ends the program stays in the folder CRASHES, and TARGET 1 0 CRASHES FILE runs it again. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_INPUT_BYTES 4096
#define MAX_SEEDS 256
#define SECONDS_A_RUN 20

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_set_death_callback(void (*callback)(void));

struct input {
    uint8_t data[MAX_INPUT_BYTES];
    size_t size;
};

static struct input seeds[MAX_SEEDS], present;
static int seed_count;
static uint64_t state;
static char crash_path[4096];

static uint64_t draw(uint64_t below) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (z ^ z >> 31) % below;
}

static void keep(void) {
    int file = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, present.data, present.size) < 0)
        return;
    close(file);
    dprintf(STDERR_FILENO, "the input is in %s\n", crash_path);
}

static void on_signal(int number) {
    keep();
    dprintf(STDERR_FILENO, "signal %d (14: it did not end)\n", number);
    _exit(70);
}

static void replace(size_t at, size_t gone, const uint8_t *text, size_t length) {
    if (at + gone > present.size || present.size - gone + length > MAX_INPUT_BYTES)
        return;
    memmove(present.data + at + length, present.data + at + gone, present.size - at - gone);
    memcpy(present.data + at, text, length);
    present.size += length - gone;
}

static void mutate(void) {
    static const char *texts[] = {"0",        "-1",  "4294967296", "18446744073709551615",
                                  "1e999",    "nan", "\0",         "\n",
                                  " ",        "\"",  "\\",         "\xff",
                                  "\xc3\xa9", "[",   "(",          ".",
                                  "=",        "{",   "999",        "/*",
                                  "%"};
    uint8_t byte = (uint8_t)draw(256);
    size_t at = draw(present.size + 1), most = present.size - at;
    const struct input *other = &seeds[draw((uint64_t)seed_count)];
    switch (draw(7)) {
    case 0:
        replace(at, most > 0, &byte, 1);
        break;
    case 1:
        if (most)
            present.data[at] ^= (uint8_t)(1 << draw(8));
        break;
    case 2:
        replace(at, draw(most + 1), &byte, 0);
        break;
    case 3: {
        uint8_t again[MAX_INPUT_BYTES];
        size_t length = draw((most < 64 ? most : 64) + 1);
        memcpy(again, present.data + at, length);
        replace(at, 0, again, length);
        break;
    }
    case 4: {
        const char *text = texts[draw(sizeof texts / sizeof *texts)];
        replace(at, draw(2) ? 0 : most > 0, (const uint8_t *)text, *text ? strlen(text) : 1);
        break;
    }
    case 5: { /* a piece of another seed */
        size_t from = draw(other->size + 1), length = draw(other->size - from + 1);
        replace(at, draw(most + 1), other->data + from, length);
        break;
    }
    default:
        replace(at, 0, &byte, 1);
    }
}

static void run(void) {
    uint8_t *exact =
        malloc(present.size ? present.size : 1); /* of exact size, so that a read beyond its end is found */
    if (!exact)
        exit(71);
    memcpy(exact, present.data, present.size);
    alarm(SECONDS_A_RUN);
    LLVMFuzzerTestOneInput(exact, present.size);
    free(exact);
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 64;
    unsigned long runs = strtoul(argv[1], NULL, 10), number = strtoul(argv[2], NULL, 10);
    snprintf(crash_path, sizeof crash_path, "%s/crash-%lu", argv[3], number);
    for (int i = 4; i < argc && seed_count < MAX_SEEDS; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file)
            return 66;
        seeds[seed_count].size = fread(seeds[seed_count].data, 1, MAX_INPUT_BYTES, file);
        seed_count++;
        fclose(file);
    }
    __sanitizer_set_death_callback(keep);
    signal(SIGABRT, on_signal);
    signal(SIGALRM, on_signal);
    state = number;
    for (unsigned long i = 0; i < runs; i++) {
        present = seeds[i % (unsigned long)seed_count];
        for (uint64_t left = i < (unsigned long)seed_count ? 0 : 1 + draw(8); left; left--)
            mutate();
        run();
    }
    alarm(0);
    printf("%lu runs\n", runs);
    return 0;
}
