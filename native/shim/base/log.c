/* The log: lines in a file, which is opened for each line so that no descriptor stays open. The program's standard error
 * gets at most one line in ten seconds. Sizes in the lines are as people write them (`size_text`). */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIN_SHOWN_INTERVAL_NS (10000 * NS_PER_MS) /* between two lines on standard error */

static struct {
    pthread_once_t once;
    enum level level;
    char path[1024]; /* empty: no file */
} settings = {.once = PTHREAD_ONCE_INIT};

static void read_settings(void) {
    const char *level = getenv("GPUSHARE_LOG"), *given = getenv("GPUSHARE_LOG_FILE");
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char host[256] = "localhost";
    int length = 0;
    settings.level = !level                    ? LOG_ERROR
                     : !strcmp(level, "debug") ? LOG_DEBUG
                     : !strcmp(level, "info")  ? LOG_INFO
                                               : LOG_ERROR;
    gethostname(host, sizeof host - 1);
    if (given && *given)
        length = snprintf(settings.path, sizeof settings.path, "%s", given);
    else if (state && *state == '/')
        length = snprintf(settings.path, sizeof settings.path, "%s/gpushare/%s/shim.log", state, host);
    else if (home && *home == '/')
        length = snprintf(settings.path, sizeof settings.path, "%s/.local/state/gpushare/%s/shim.log", home, host);
    if ((size_t)length >= sizeof settings.path)
        settings.path[0] = 0;
}

void log_start(void) {
    pthread_once(&settings.once, read_settings);
}

bool log_enabled(enum level level) {
    log_start();
    return level <= settings.level;
}

static void make_folders(void) {
    char path[sizeof settings.path];
    strcpy(path, settings.path);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

struct size_text size_text(uint64_t bytes) {
    static const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct size_text made;
    double amount = (double)bytes;
    size_t unit = 0;
    for (; amount >= 1023.95 && unit < sizeof units / sizeof *units - 1; unit++)
        amount /= 1024;
    int length = snprintf(made.text, sizeof made.text, "%.*f", amount < 10 ? 2 : 1, amount);
    while (made.text[length - 1] == '0')
        length--;
    if (made.text[length - 1] == '.')
        length--;
    snprintf(made.text + length, sizeof made.text - (size_t)length, " %s", units[unit]);
    return made;
}

void log_message(enum level level, const char *format, ...) {
    static const char *names[] = {"error", "info", "debug"};
    static _Atomic uint64_t next_shown_at;
    if (!log_enabled(level))
        return;
    int error = errno;
    char line[1024], stamp[32];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    int head =
        snprintf(line, sizeof line, "%s.%03ld %s [%d] ", stamp, now.tv_nsec / 1000000, names[level], (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, arguments);
    va_end(arguments);
    size_t room = sizeof line - (size_t)head - 2, length = (size_t)head + ((size_t)body < room ? (size_t)body : room);
    line[length++] = '\n';
    const char *path = settings.path;
    bool has_path = *path != 0;
    if (has_path) {
        int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, file = open(path, flags, 0600);
        if (file < 0 && errno == ENOENT) {
            make_folders();
            file = open(path, flags, 0600);
        }
        has_path = file >= 0 && write(file, line, length) >= 0;
        if (file >= 0)
            close(file);
    }
    uint64_t steady_now = now_ns(), due = atomic_load(&next_shown_at);
    if (level == LOG_ERROR && steady_now >= due &&
        atomic_compare_exchange_strong(&next_shown_at, &due, steady_now + MIN_SHOWN_INTERVAL_NS)) {
        line[length - 1] = 0;
        dprintf(STDERR_FILENO, "gpushare: %s%s%s%s\n", line + head, has_path ? " (more in " : "", has_path ? path : "",
                has_path ? ")" : "");
    }
    errno = error;
}
