/* A process joins its client: the client's first process made the client page and opened the device locks that count, and
 * the coordinator sends their descriptors to each later one. What that one had before goes, once nothing runs by it. All by
 * the agent. */
#include "shim.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

static struct {
    int locks[MAX_DEVICES]; /* replaced while our gate was open: to be closed after the drain */
    int count;
    int client; /* the client page with them; -1: none */
} old = {.client = -1};

static bool is_page(int file) {
    struct stat status;
    int seals = fcntl(file, F_GET_SEALS);
    return fstat(file, &status) == 0 && status.st_size == GPUSHARE_PAGE_BYTES && seals >= 0 && (seals & F_SEAL_SHRINK);
}

bool join_client(const int *files, int count, uint32_t word_at_hello) {
    struct gpushare_client *client = NULL;
    if (count == 1 + shim.device_count && is_page(files[0]))
        client = map_page(files[0]);
    if (client && client->magic != GPUSHARE_PAGE_MAGIC) {
        munmap(client, GPUSHARE_PAGE_BYTES);
        client = NULL;
    }
    if (!client)
        return false;
    bool running = is_running();
    for (int i = 0; i < shim.device_count; i++) {
        int before = shim.devices[i].lock;
        if (running && old.count < MAX_DEVICES)
            old.locks[old.count++] = before;
        else
            file_close(before);
        shim.devices[i].lock = file_keep(files[1 + i]);
    }
    int before = account_join(client, file_keep(files[0]));
    /* With its record lock: by that others who still have the old locks see that they are needed. */
    if (running && old.client < 0)
        old.client = before;
    else
        file_close(before);
    /* A turn that we took by the old locks is not the coordinator's: it ends here, and the old locks with it. If the word
     * is another than at hello, then the coordinator has opened the gate: its orders may be here before its answer is. */
    uint32_t word = gate_word(the_page());
    if (running && is_open(word) && unmetered(word) == unmetered(word_at_hello))
        __atomic_compare_exchange_n(&the_page()->orders.gate, &word, closing_of(word), false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    return true;
}

/* Closing is enough: a lock on a description that nobody else holds open goes with it. */
void join_drop_old(void) {
    while (old.count > 0)
        file_close(old.locks[--old.count]);
    if (old.client < 0)
        return;
    file_close(old.client);
    old.client = -1;
    lockmode_contact(atomic_load(&shim.contact) == THERE); /* if it was the very same file, that lock went with it */
}

void join_after_fork(void) {
    old.count = 0;
    old.client = -1;
}
