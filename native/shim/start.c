/* Waking up at the first CUDA call, giving up when that cannot be, and a child's new life after a fork. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TEXT2(number) #number
#define TEXT(number) TEXT2(number)

/* For `jupyter gpushare doctor`: readable by a call, and in the file without loading it. */
__attribute__((section(".gpushare.version"), used)) static const char version_text[] =
    "gpushare shim " GPUSHARE_SHIM_VERSION " page " TEXT(GPUSHARE_PAGE_VERSION) " wire 1";

EXPORT const char *gpushare_version(void);
EXPORT const char *gpushare_version(void) {
    return version_text;
}

/* While asleep the gate looks closed, so that the first call comes here; when off it looks open for ever. */
static struct gpushare_page page_asleep, page_off = {.orders = {.gate = GPUSHARE_GATE_OPEN}};

struct shim shim = {.page = &page_asleep, .wake = -1, .waker = -1, .page_file = -1, .client_file = -1};

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

void shim_off(const char *why) {
    struct gpushare_page *page = the_page();
    if (why)
        log_line(LOG_ERROR, "the GPU is not shared in this process: %s", why);
    set_page(&page_off);
    atomic_store(&shim.state, OFF);
    futex_wake_all(&page->orders.gate);
}

void *map_page(int file) {
    void *memory = mmap(NULL, GPUSHARE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Sealed, so that no peer can make an access to it fault by shrinking it. */
static void *make_page(const char *name, int *file) {
    *file = (int)syscall(SYS_memfd_create, name, 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
    if (*file < 0 || ftruncate(*file, GPUSHARE_PAGE_BYTES) != 0 ||
        fcntl(*file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
        return NULL;
    return map_page(file_keep(*file));
}

static struct gpushare_client *make_client_page(int *file) {
    struct gpushare_client *client = make_page("gpushare-client", file);
    if (!client)
        return NULL;
    client->magic = GPUSHARE_PAGE_MAGIC;
    client->version = GPUSHARE_PAGE_VERSION;
    client->bytes = GPUSHARE_PAGE_BYTES;
    return client;
}

static bool make_pages(void) {
    struct gpushare_page *page = make_page("gpushare-page", &shim.page_file);
    struct gpushare_client *client = make_client_page(&shim.client_file);
    if (!page || !client)
        return false;
    page->header = (struct gpushare_page_header){GPUSHARE_PAGE_MAGIC, GPUSHARE_PAGE_VERSION, GPUSHARE_PAGE_BYTES,
                                                 (uint32_t)getpid()};
    page->orders.memory_backing = page->orders.resident_target = UINT64_MAX; /* unknown, everything */
    page->report.memory_mode = shim.mode->number;
    page->orders.quantum_ns = 30000 * MS; /* for lock-file mode, until a coordinator has said better */
    page->orders.idle_release_ns = 50 * MS;
    shim.client = client;
    set_page(page);
    return true;
}

/* Not an event descriptor: those have no identity of their own. */
static bool make_pipe(void) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return false;
    shim.wake = file_keep(ends[0]);
    shim.waker = file_keep(ends[1]);
    return true;
}

static void format_uuid(char *text, size_t room, const char *prefix, const CUuuid *uuid) {
    int at = snprintf(text, room, "%s-", prefix);
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, room - (size_t)at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                       uuid->bytes[i]);
}

/* Every device that the program may see. False: there is none, or the driver is not initialised. */
static bool find_devices(void) {
    int count = 0;
    bool managed = true;
    if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count < 1)
        return false;
    shim.device_count = 0;
    for (int i = 0; i < count && i < MAX_DEVICES; i++) {
        struct device *device = &shim.devices[shim.device_count];
        CUdevice handle;
        CUuuid whole, part;
        size_t memory = 0;
        int access = 0;
        if (REAL(cuDeviceGet)(&handle, i) != CUDA_SUCCESS || REAL(cuDeviceGetUuid)(&whole, handle) != CUDA_SUCCESS)
            continue;
        if (REAL(cuDeviceGetUuid_v2)(&part, handle) != CUDA_SUCCESS)
            part = whole;
        /* The newer call names a slice of a partitioned device, the older one the whole. */
        format_uuid(device->uuid, sizeof device->uuid, memcmp(&part, &whole, sizeof part) ? "MIG" : "GPU", &part);
        REAL(cuDeviceGetName)(device->name, sizeof device->name - 1, handle);
        REAL(cuDeviceTotalMem_v2)(&memory, handle);
        REAL(cuDeviceGetAttribute)(&access, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, handle);
        device->memory = memory;
        device->lock = -1;
        managed = managed && access;
        shim.device_count++;
    }
    shim.mode = mode_named(environment_memory_mode());
    if (shim.mode == &mode_unified && !managed) {
        shim.mode = &mode_plain;
        log_line(LOG_ERROR, "this device cannot page unified memory: clients share its time, but together they have no "
                            "more memory than it holds");
    }
    return shim.device_count > 0;
}

/* What a child must not share with its parent: mappings, descriptors (they would keep the parent's locks held), locks
 * that another thread may have had. Only calls that are safe between fork and exec. */
static void after_fork(void) {
    struct gpushare_page *page = the_page();
    if (page != &page_asleep && page != &page_off)
        munmap(page, GPUSHARE_PAGE_BYTES);
    if (shim.client)
        munmap(shim.client, GPUSHARE_PAGE_BYTES);
    files_after_fork();
    shim.wake = shim.waker = shim.page_file = shim.client_file = -1;
    shim.device_count = 0;
    shim.client = NULL;
    atomic_store(&shim.contact, AWAY);
    atomic_store(&shim.wants_for, 0);
    bool off = atomic_load(&shim.state) == OFF;
    set_page(off ? &page_off : &page_asleep);
    atomic_store(&shim.state, off ? OFF : ASLEEP);
    pthread_mutex_init(&start_lock, NULL);
    threads_after_fork();
    streams_after_fork();
    meter_after_fork();
    ledger_after_fork();
    graphs_after_fork();
    inspect_after_fork();
    account_after_fork();
    deferred_after_fork();
    memory_after_fork();
    socket_after_fork();
    join_after_fork();
    lockmode_after_fork();
    relay_after_fork();
    interrupt_after_fork();
    drain_abandon(false);
}

/* The same gate and the same figures in another memory. Threads that wait at the old gate come over to the new one; any
 * that still looks at the old one finds it closed. It stays mapped for them. */
static bool change_pages(void) {
    struct gpushare_page *before = the_page(), *page = make_page("gpushare-page", &shim.page_file);
    int client_file;
    struct gpushare_client *client = make_client_page(&client_file);
    if (!page || !client)
        return false;
    pthread_mutex_lock(&account_lock);
    uint64_t *from = (uint64_t *)before, *to = (uint64_t *)page; /* whole words: others go on counting */
    for (size_t i = 0; i < sizeof *page / sizeof *to; i++)
        PUT(to[i], GET(from[i]));
    page->report.waiting = 0;
    set_page(page);
    pthread_mutex_unlock(&account_lock);
    __atomic_store_n(&before->orders.gate, GPUSHARE_GATE_CLOSED, __ATOMIC_SEQ_CST);
    atomic_store(&shim.wants_for, 0);
    futex_wake_all(&before->orders.gate);
    shim.client_file = -1;
    file_close(account_join(client, client_file));
    return true;
}

/* A daemon has closed all descriptors, perhaps while a turn of ours runs, and perhaps others stand under their numbers by
 * now. Those are not touched; the coordinator, if there is one, gets to know this process once more. */
void shim_start_over(void) {
    log_line(LOG_INFO, "the program has closed the shim's descriptors: it makes new ones");
    relay_pause();
    relay_forget();
    relay_forget_file();
    lockmode_after_fork();
    socket_start_over();
    files_close_all();
    bool made = change_pages() && make_pipe() && lockmode_open_files();
    relay_go_on();
    if (!made)
        shim_off("the program has closed the shim's descriptors, and new ones could not be made");
    else if (is_running())
        lockmode_hold(true);
}

/* The start lock is held. */
static bool wake_up(void) {
    static bool watches_forks;
    log_start();
    if (!find_devices())
        return false;
    environment_read();
    if (!threads_start())
        return shim_off("no thread key is left"), false;
    if (!watches_forks && pthread_atfork(NULL, NULL, after_fork) != 0)
        return shim_off("forks cannot be watched"), false;
    watches_forks = true;
    if (!make_pages())
        return shim_off("shared memory could not be made (memfd_create)"), false;
    if (!make_pipe())
        return shim_off("no pipe could be made"), false;
    if (!lockmode_open_files())
        return shim_off("the devices' lock files could not be opened (GPUSHARE_LOCK_DIR)"), false;
    drain_start();
    if (!agent_start())
        return shim_off("no thread could be started"), false;
    interrupt_start();
    log_line(LOG_INFO, "%s: client %s, %d device(s), first %s, memory %s%s", version_text, shim.client_id,
             shim.device_count, shim.devices[0].uuid, shim.mode->name, shim.simulated ? ", simulated" : "");
    atomic_store(&shim.state, AWAKE);
    return true;
}

bool shim_start(void) {
    pthread_mutex_lock(&start_lock);
    bool first = false;
    if (atomic_load(&shim.state) == ASLEEP) {
        const char *disable = getenv("GPUSHARE_DISABLE");
        if (disable && strcmp(disable, "1") == 0)
            shim_off(NULL);
        else
            first = wake_up();
    }
    bool awake = atomic_load(&shim.state) == AWAKE;
    pthread_mutex_unlock(&start_lock);
    if (first)
        agent_answered();
    return awake;
}

CUresult hook_cuInit(unsigned flags) {
    CUresult result = REAL(cuInit)(flags);
    if (result == CUDA_SUCCESS && atomic_load(&shim.state) == ASLEEP)
        shim_start();
    return result;
}
