/* Settings of core dumps, which the simulated devices never write. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/exports.h"
#include "context/context.h"
#include "api/api.h"

/* Numbers and defaults are those of the documentation of cuCoredumpGetAttribute. */
enum { ENABLE_ON_EXCEPTION = 1, TRIGGER_HOST, LIGHTWEIGHT, ENABLE_USER_TRIGGER, DUMP_FILE, DUMP_PIPE, FLAGS, END };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_dump_settings of_process = {.is_on = {[TRIGGER_HOST] = 1}};

/* Return the settings of the process. The lock is held. */
static struct sim_dump_settings *global_settings(void) {
    if (!of_process.text[0][0]) {
        char host[256] = "localhost";
        gethostname(host, sizeof host - 1);
        snprintf(of_process.text[0], SIM_MAX_DUMP_TEXT, "core.cuda.%s.%d", host, (int)getpid());
        snprintf(of_process.text[1], SIM_MAX_DUMP_TEXT, "corepipe.cuda.%s.%d", host, (int)getpid());
    }
    return &of_process;
}

/* Give a new context the settings of the process, which the flags of the context change. */
void dump_settings_begin(struct sim_context *context) {
    pthread_mutex_lock(&lock);
    struct sim_dump_settings *settings = global_settings();
    if (context->flags & CU_CTX_USER_COREDUMP_ENABLE)
        settings->is_on[ENABLE_USER_TRIGGER] = 1;
    context->dump = *settings;
    if (context->flags & (CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE))
        context->dump.is_on[ENABLE_ON_EXCEPTION] = 1;
    pthread_mutex_unlock(&lock);
}

static void *setting(struct sim_dump_settings *settings, int attribute, size_t *size) {
    int is_text = attribute == DUMP_FILE || attribute == DUMP_PIPE;
    *size = is_text ? SIM_MAX_DUMP_TEXT : attribute == FLAGS ? sizeof settings->flags : 1;
    return is_text              ? settings->text[attribute - DUMP_FILE]
           : attribute == FLAGS ? (void *)&settings->flags
                                : &settings->is_on[attribute];
}

/* Read a setting of a context, or of the process without a context. */
static CUresult get(struct sim_context *context, int attribute, void *value, size_t *size) {
    size_t all;
    if (attribute < ENABLE_ON_EXCEPTION || attribute >= END || !size)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const void *found = setting(context ? &context->dump : global_settings(), attribute, &all);
    size_t least = all == SIM_MAX_DUMP_TEXT ? strlen(found) + 1 : all;
    CUresult result = value && *size < least ? CUDA_ERROR_INVALID_VALUE : 0;
    if (value && !result)
        memcpy(value, found, *size < all ? *size : all);
    if (!value)
        *size = all;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Change a setting of a context, or of the process without a context. Without a value the size is returned. */
static CUresult set(struct sim_context *context, int attribute, const void *value, size_t *size) {
    size_t all;
    if (attribute < ENABLE_ON_EXCEPTION || attribute >= END || !size)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    void *found = setting(context ? &context->dump : global_settings(), attribute, &all);
    CUresult result = CUDA_SUCCESS;
    if (!value)
        *size = all;
    else if (all == SIM_MAX_DUMP_TEXT)
        snprintf(found, all, "%.*s", (int)(*size < all ? *size : all - 1), (const char *)value);
    else if (*size < all)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        memcpy(found, value, all);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuCoredumpGetAttributeGlobal(int attribute, void *value, size_t *size) {
    SIM_ENTER();
    return get(NULL, attribute, value, size);
}

CUresult cuCoredumpSetAttributeGlobal(int attribute, void *value, size_t *size) {
    SIM_ENTER();
    return set(NULL, attribute, value, size);
}

CUresult cuCoredumpGetAttribute(int attribute, void *value, size_t *size) {
    struct sim_context *context;
    SIM_ENTER();
    CUresult result = context_current(&context);
    return result ? result : get(context, attribute, value, size);
}

/* The pipe and its trigger are settings of the process alone. The documentation names no error for a context's. */
CUresult cuCoredumpSetAttribute(int attribute, void *value, size_t *size) {
    struct sim_context *context;
    SIM_ENTER();
    CUresult result = context_current(&context);
    if (!result && (attribute == ENABLE_USER_TRIGGER || attribute == DUMP_PIPE))
        result = CUDA_ERROR_INVALID_VALUE;
    return result ? result : set(context, attribute, value, size);
}
