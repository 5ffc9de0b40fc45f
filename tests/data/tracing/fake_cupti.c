/* The part of CUPTI that the recorder calls, with copies that a test orders: each writes its records as CUPTI does. */
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

typedef struct { int32_t site; const char *name; const void *params; void *result; const char *symbol; void *context;
                 uint32_t uid; uint64_t *data; uint32_t correlation; } Call;
typedef void (*Callback)(void *, uint32_t, uint32_t, const Call *);
typedef void (*Request)(uint8_t **, size_t *, size_t *);
typedef void (*Complete)(void *, uint32_t, uint8_t *, size_t, size_t);

static Callback callback;
static Request request;
static Complete complete;
static uint8_t *buffer;
static size_t size, used;
static uint32_t correlation;
static int on, subscribers;
int fake_refuses = 0;

int cuptiSubscribe(void **handle, Callback call, void *user) {
    if (fake_refuses) return fake_refuses;
    callback = call; *handle = &callback; subscribers++;
    return 0;
}
int cuptiUnsubscribe(void *handle) { callback = NULL; return 0; }
int cuptiActivityRegisterCallbacks(Request r, Complete c) { request = r; complete = c; return 0; }
int cuptiActivityEnable(int kind) { on++; return 0; }
int cuptiActivityDisable(int kind) { on--; return 0; }
int cuptiActivityEnableRuntimeApi(uint32_t number, uint8_t enable) { return 0; }
int cuptiActivityEnableDriverApi(uint32_t number, uint8_t enable) { return 0; }
int cuptiEnableCallback(uint32_t enable, void *handle, int domain, uint32_t number) { return 0; }
int cuptiActivityFlushAll(uint32_t flag) {
    if (buffer) { complete(NULL, 0, buffer, size, used); buffer = NULL; }
    return 0;
}

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }

static void *place(size_t wanted) {
    if (buffer && used + wanted > size) { complete(NULL, 0, buffer, size, used); buffer = NULL; }
    if (!buffer) { size_t most; request(&buffer, &size, &most); used = 0; if (!buffer) return NULL; }
    used += wanted;
    return buffer + used - wanted;
}

/* A copy of so many bytes by cudaMemcpyAsync: kinds are 1 pageable, 2 pinned, 3 device. */
void fake_copy(uint64_t bytes, int source, int target) {
    Call call = {0, "cudaMemcpyAsync", NULL, NULL, "", NULL, 1, NULL, ++correlation};
    if (callback) { callback(NULL, 2, 41, &call); callback(NULL, 1, 279, &call); call.site = 1; callback(NULL, 1, 279, &call); callback(NULL, 2, 41, &call); }
    if (!on) return;
    uint64_t at = now();
    uint8_t *copy = place(96);
    if (copy) {
        uint32_t kind = 1; memset(copy, 0, 96);
        memcpy(copy, &kind, 4); copy[4] = target == 3 ? 1 : 2; copy[5] = source; copy[6] = target; copy[7] = 1;
        memcpy(copy + 8, &bytes, 8); uint64_t begun = at + 1000, done = at + 1000 + bytes / 10;
        memcpy(copy + 16, &begun, 8); memcpy(copy + 24, &done, 8); memcpy(copy + 44, &correlation, 4);
    }
    uint8_t *api = place(40);
    if (api) {
        uint32_t head[2] = {5, 41}, tail[4] = {1, 1, correlation, 0}; uint64_t times[2] = {at, at + bytes / 9};
        memcpy(api, head, 8); memcpy(api + 8, times, 16); memcpy(api + 24, tail, 16);
    }
}
