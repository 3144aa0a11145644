/* Settings of core dumps, which the simulated devices never write. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/exports.h"

#define MAX_TEXT 1024 /* bytes, with the end */

/* Numbers and defaults are those of the documentation of cuCoredumpGetAttribute. */
enum { ENABLE_ON_EXCEPTION = 1, TRIGGER_HOST, LIGHTWEIGHT, ENABLE_USER_TRIGGER, DUMP_FILE, DUMP_PIPE, FLAGS, END };

static struct {
    pthread_mutex_t lock;
    int has_names;
    unsigned char is_on[ENABLE_USER_TRIGGER + 1];
    char text[2][MAX_TEXT];
    int flags;
} settings = {.lock = PTHREAD_MUTEX_INITIALIZER, .is_on = {[TRIGGER_HOST] = 1}};

/* The lock is held. */
static void *setting(int attribute, size_t *size) {
    if (!settings.has_names) {
        char host[256] = "localhost";
        gethostname(host, sizeof host - 1);
        snprintf(settings.text[0], MAX_TEXT, "core.cuda.%s.%d", host, (int)getpid());
        snprintf(settings.text[1], MAX_TEXT, "corepipe.cuda.%s.%d", host, (int)getpid());
        settings.has_names = 1;
    }
    int is_text = attribute == DUMP_FILE || attribute == DUMP_PIPE;
    *size = is_text ? MAX_TEXT : attribute == FLAGS ? sizeof settings.flags : 1;
    return is_text              ? settings.text[attribute - DUMP_FILE]
           : attribute == FLAGS ? (void *)&settings.flags
                                : &settings.is_on[attribute];
}

CUresult cuCoredumpGetAttributeGlobal(int attribute, void *value, size_t *size) {
    size_t all;
    SIM_ENTER();
    if (attribute < ENABLE_ON_EXCEPTION || attribute >= END || !size)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&settings.lock);
    const void *found = setting(attribute, &all);
    CUresult result = value && *size < (all == MAX_TEXT ? strlen(found) + 1 : all) ? CUDA_ERROR_INVALID_VALUE : 0;
    if (value && !result)
        memcpy(value, found, *size < all ? *size : all);
    if (!value)
        *size = all;
    pthread_mutex_unlock(&settings.lock);
    return result;
}

CUresult cuCoredumpSetAttributeGlobal(int attribute, void *value, size_t *size) {
    size_t all;
    SIM_ENTER();
    if (attribute < ENABLE_ON_EXCEPTION || attribute >= END || !value || !size)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&settings.lock);
    void *found = setting(attribute, &all);
    CUresult result = CUDA_SUCCESS;
    if (all == MAX_TEXT)
        snprintf(found, MAX_TEXT, "%.*s", (int)(*size < MAX_TEXT ? *size : MAX_TEXT - 1), (const char *)value);
    else if (*size < all)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        memcpy(found, value, all);
    pthread_mutex_unlock(&settings.lock);
    return result;
}
