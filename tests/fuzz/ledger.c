/* Fuzz target that compares the ledger and account.c with a plain array, while the control block has random values.
 * A step is four bytes: operation; address or slot; mantissa of the size; exponent (5 bits), flag (1 bit) and context
 * (2 bits). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../native/shim/memory/account/account.c"
#include "../../native/shim/memory/account/ledger.c"
#include "../../native/shim/memory/account/pool_figures.c"

#define ADDRESSES_USED 256

static struct gpushare_page page;
static const struct memory_mode mode = {.name = "unified"};
struct shim shim = {.page = &page, .mode = &mode};

void *driver_functions[HOOK_COUNT];

void *driver_resolve(enum hook_id id) {
    (void)id;
    abort(); /* no allocation here has a pool */
}

int relaxed_mode_begin(void) {
    abort(); /* no allocation here has a pool */
}

void relaxed_mode_end(const int *mode) {
    (void)mode;
}

void log_message(enum level level, const char *format, ...) {
    (void)level, (void)format;
}

void refusal_log(uint64_t bytes, const char *format, ...) {
    (void)bytes, (void)format;
}

void outbox_post(unsigned messages) {
    (void)messages;
}

struct size_text size_text(uint64_t bytes) {
    (void)bytes;
    return (struct size_text){""};
}

void fd_close(int file) {
    close(file);
}

static void must(bool condition) {
    if (!condition)
        abort();
}

static struct entry expected[ADDRESSES_USED]; /* an entry with key 0 is free */

static struct gpushare_client *new_client(void) {
    struct gpushare_client *client =
        mmap(NULL, GPUSHARE_CLIENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(client != MAP_FAILED);
    return client;
}

static void check(void) {
    uint64_t bytes = 0, unmovable = 0, total, free_bytes;
    for (int i = 0; i < ADDRESSES_USED; i++) {
        bytes += expected[i].key ? expected[i].bytes : 0;
        unmovable += expected[i].key && is_unmovable(expected[i].kind) ? expected[i].bytes : 0;
    }
    must(page.report.allocated == bytes && page.report.unmovable == unmovable);
    must(shim.client->slots[page.control.slot % GPUSHARE_SLOTS].allocated == bytes ||
         page.control.slot % GPUSHARE_SLOTS != own_slot);
    account_apparent_memory(1 << 30, 1 << 29, &total, &free_bytes);
    must(free_bytes <= total);
}

static void add(uint64_t key, uint64_t bytes, uint32_t kind, CUcontext context) {
    struct entry *mine = &expected[key - 1],
                 entry = {.key = key << 9, .bytes = bytes, .kind = kind, .context = context};
    uint64_t limit = page.control.memory_limit, backing = page.control.memory_backing;
    uint64_t before = client_sum();
    if (mine->key)
        return;
    bool fits = account_would_fit(bytes), taken = account_reserve(bytes, is_unmovable(kind));
    must(taken == fits);
    must(taken == (before + bytes <= backing && (!limit || before + bytes <= limit)));
    if (!taken)
        return;
    must(ledger_add(LEDGER_ADDRESSES, &entry));
    *mine = entry;
}

static void take(uint64_t key) {
    struct entry entry, *mine = &expected[key - 1];
    must(ledger_find(LEDGER_ADDRESSES, key << 9, &entry) == (mine->key != 0));
    if (!ledger_remove(LEDGER_ADDRESSES, key << 9, &entry)) {
        must(!mine->key);
        return;
    }
    must(memcmp(&entry, mine, sizeof entry) == 0);
    account_release(entry.bytes, is_unmovable(entry.kind));
    mine->key = 0;
    must(!ledger_find(LEDGER_ADDRESSES, key << 9, &entry));
}

static void end_context(CUcontext context) {
    struct entry_sums ended = {0};
    uint64_t unmovable_of_mine = 0, of_mine = 0;
    ledger_drop_context(context, &ended);
    for (int i = 0; i < ADDRESSES_USED; i++)
        if (expected[i].key && expected[i].context == context) {
            of_mine += expected[i].bytes;
            unmovable_of_mine += is_unmovable(expected[i].kind) ? expected[i].bytes : 0;
            expected[i].key = 0;
        }
    must(ended.bytes == of_mine && ended.unmovable == unmovable_of_mine && !ended.evicted && !ended.on_host);
    account_release_entries(&ended);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memset(expected, 0, sizeof expected);
    memset(&page, 0, sizeof page);
    page.control.memory_backing = UINT64_MAX;
    shim.client = new_client();
    shim.client_fd = -1;
    for (; size >= 4; data += 4, size -= 4) {
        uint64_t key = data[1] + 1ull, bytes = (data[2] + 1ull) << (data[3] & 31);
        CUcontext context = (CUcontext)(uintptr_t)(0x1000 * (1 + (data[3] >> 6)));
        switch (data[0] % 12) {
        case 0:
            end_context(context);
            break;
        case 1:
            page.control.memory_limit = data[3] & 32 ? 0 : bytes;
            break;
        case 2:
            page.control.memory_backing = data[3] & 32 ? UINT64_MAX : bytes;
            break;
        case 3: /* a sibling */
            if ((data[1] ^ own_slot) % GPUSHARE_SLOTS)
                shim.client->slots[data[1] % GPUSHARE_SLOTS].allocated = data[3] & 32 ? UINT64_MAX - bytes : bytes;
            break;
        case 4:
            page.control.memory_total = bytes;
            break;
        case 5:
            page.control.slot = data[1] * 0x01010101u;
            account_update_slot();
            break;
        case 6: {
            struct gpushare_client *other = new_client();
            account_attach_client_page(other, -1);
            break;
        }
        case 7:
        case 8:
        case 9:
            add(key, bytes, (data[3] >> 5 & 1) ? MEMORY_REDIRECTED : MEMORY_DEVICE, context);
            break;
        default:
            take(key);
        }
        check();
    }
    for (uint64_t key = 1; key <= ADDRESSES_USED; key++)
        take(key);
    check();
    munmap(shim.client, GPUSHARE_CLIENT_BYTES);
    for (int i = 0; i < LEDGER_TABLES * SHARDS; i++)
        free(tables[i / SHARDS][i % SHARDS].entries);
    ledger_after_fork();
    account_after_fork();
    return 0;
}
