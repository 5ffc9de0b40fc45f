/* The part of CUPTI that the recorder calls, with copies that a test orders: each writes its records as CUPTI does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
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
static _Atomic uint32_t correlation;
static int on;
static uint8_t kinds[64];
static uint8_t enabled[6][1024];
static pthread_mutex_t records = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

int cuptiSubscribe(void **handle, Callback call, void *user) {
    if (getenv("FAKE_CUPTI_REFUSES")) return atoi(getenv("FAKE_CUPTI_REFUSES"));
    callback = call; *handle = &callback;
    return 0;
}
int cuptiUnsubscribe(void *handle) { callback = NULL; memset(enabled, 0, sizeof enabled); return 0; }
int cuptiActivityRegisterCallbacks(Request r, Complete c) { request = r; complete = c; return 0; }
int cuptiActivityEnable(int kind) { on += !kinds[kind]; kinds[kind] = 1; return 0; }
int cuptiActivityDisable(int kind) { on -= kinds[kind]; kinds[kind] = 0; return 0; }
/* The driver has the functions below this number: 580 lacks the last ones of CUPTI 13.4. */
static uint32_t functions(void) { const char *count = getenv("FAKE_CUPTI_FUNCTIONS"); return count ? atoi(count) : 837; }
int cuptiEnableCallback(uint32_t enable, void *handle, int domain, uint32_t number) {
    if (domain < 1 || domain > 5 || number >= 1024 || (domain == 1 && number >= functions())) return 1;
    if (!enable) abort(); /* CUPTI would count the calls of a thread no more that is in a callback now */
    enabled[domain][number] = enable;
    return 0;
}
/* The driver itself is in here, too. */
int cuDriverGetVersion(int *version) {
    const char *cuda = getenv("FAKE_DRIVER");
    *version = cuda ? atoi(cuda) : 13000;
    return 0;
}
int cuCtxSynchronize(void) { return 0; }
int cuptiGetTimestamp(uint64_t *moment) {
    const char *error = getenv("FAKE_CUPTI_FAILS");
    *moment = 0;
    return error ? atoi(error) : 0;
}
static const struct { int domain; uint32_t number; const char *name; } names[] = {
    {1, 126, "cuStreamSynchronize"}, {1, 130, "cuMemFreeHost"}, {1, 131, "cuMemHostAlloc"},
    {1, 276, "cuMemcpyHtoD_v2"}, {1, 277, "cuMemcpyHtoDAsync_v2"}, {1, 279, "cuMemcpyDtoHAsync_v2"},
    {1, 307, "cuLaunchKernel"}, {1, 371, "cuMemAllocManaged"}, {1, 716, "cuMemPrefetchAsync_v2"},
    {1, 837, "cuMemcpyWithAttributesAsync"}, {2, 3, "cudaGetDeviceCount_v3020"}, {2, 10, "cudaGetLastError_v3020"},
    {1, 500, "cuMemHostRegister_v2"}, {2, 138, "cudaEventQuery_v3020"}, {2, 152, "cudaHostRegister_v4000"},
    {2, 165, "cudaDeviceSynchronize_v3020"}, {2, 211, "cudaLaunchKernel_v7000"},
};
int cuptiGetCallbackName(int domain, uint32_t number, const char **name) {
    for (size_t each = 0; each < sizeof names / sizeof *names; each++)
        if (names[each].domain == domain && names[each].number == number) { *name = names[each].name; return 0; }
    return 1;
}
/* Records are longer from version to version. */
#if defined CUPTI_12_4
enum { MEMCPY = 88, KERNEL = 208, MEMORY = 120, COUNTER = 64 };
int cuptiGetVersion(uint32_t *version) { *version = 22; return 0; }
#elif defined CUPTI_13_1
enum { MEMCPY = 96, KERNEL = 224, MEMORY = 128, COUNTER = 104 };
int cuptiGetVersion(uint32_t *version) { *version = 130101; return 0; }
#else /* 13.4 */
enum { MEMCPY = 112, KERNEL = 248, MEMORY = 128, COUNTER = 104 };
int cuptiGetVersion(uint32_t *version) { *version = 130400; return 0; }
int cuptiActivityGetStructSize(int kind, uint32_t version, size_t *bytes) {
    if (version || (kind != 1 && kind != 10 && kind != 25 && kind != 49)) return 21;
    *bytes = kind == 1 ? MEMCPY : kind == 10 ? KERNEL : kind == 25 ? COUNTER : MEMORY;
    return 0;
}
#endif
int cuptiActivityConfigureUnifiedMemoryCounter(const uint32_t *asked, uint32_t count) {
    if (getenv("FAKE_CUPTI_NO_COUNTERS")) return atoi(getenv("FAKE_CUPTI_NO_COUNTERS"));
    return asked && count ? 0 : 1;
}
int cuptiActivityFlushAll(uint32_t flag) {
    pthread_mutex_lock(&records);
    if (buffer) { complete(NULL, 0, buffer, size, used); buffer = NULL; }
    pthread_mutex_unlock(&records);
    return 0;
}

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }

/* Append a record; without a buffer it is dropped. */
static void append(const void *record, size_t wanted) {
    pthread_mutex_lock(&records);
    if (buffer && used + wanted > size) { complete(NULL, 0, buffer, size, used); buffer = NULL; }
    if (!buffer) { size_t most; request(&buffer, &size, &most); used = 0; }
    if (buffer) { memcpy(buffer + used, record, wanted); used += wanted; }
    pthread_mutex_unlock(&records);
}

/* A function of the driver, which calls back as it begins and as it returns. */
static void at(int32_t site, uint32_t number, Call *call) {
    call->site = site;
    if (callback && enabled[1][number]) callback(NULL, 1, number, call);
}

/* How many kinds of records are kept. */
int fake_asked(void) { return on; }

static void until(uint64_t moment) { while (now() < moment); }

static volatile int under_way, over;
/* A copy of so many bytes at an address by cuMemcpyHtoDAsync: kinds are 1 pageable, 2 pinned, 3 device. Pageable: 9 bytes a
   nanosecond, while the call is held; pinned: 50, behind the call. */
void fake_copy_of(const void *host, uint64_t bytes, int source, int target) {
    struct { uint64_t gpu; const void *host; uint64_t bytes; void *stream; } params = {1ull << 40, host, bytes, NULL};
    Call call = {.params = &params, .correlation = ++correlation};
    at(0, 277, &call);
    int pageable = source == 1 || target == 1;
    uint64_t took = bytes / (pageable ? 9 : 50), begun = now() + 1000, done = begun + took;
    uint8_t copy[MEMCPY] = {1};
    copy[4] = target == 3 ? 1 : 2; copy[5] = source; copy[6] = target; copy[7] = 1;
    memcpy(copy + 8, &bytes, 8); memcpy(copy + 16, &begun, 8); memcpy(copy + 24, &done, 8);
    memcpy(copy + 44, &call.correlation, 4);
    if (on) append(copy, sizeof copy);
    under_way++;
    if (pageable && took > 1000) until(done);
    under_way--;
    at(1, 277, &call);
    over++;
}
/* Whether a copy is under way. Called with Python's lock: keeps it until so many copies are over, at most two seconds;
   whether they are. */
int fake_under_way(void) { return under_way; }
int fake_hold(int copies) {
    for (uint64_t end = now() + 2000000000; over < copies && now() < end;);
    return over >= copies;
}

void fake_copy(uint64_t bytes, int source, int target) { fake_copy_of(NULL, bytes, source, target); }

/* The same within a range, as a library may name it. */
void fake_push(const char *);
void fake_pop(void);
void fake_copy_in_range(const void *host, uint64_t bytes, int source, int target) {
    fake_push("of a library");
    fake_copy_of(host, bytes, source, target);
    fake_pop();
}

/* A copy from pinned memory in a thread of its own, which runs no Python. */
static void *copy_pinned(void *bytes) { fake_copy((uint64_t)bytes, 2, 3); return NULL; }
void fake_copy_in_thread(uint64_t bytes) {
    pthread_t thread;
    if (!pthread_create(&thread, NULL, copy_pinned, (void *)bytes)) pthread_join(thread, NULL);
}

/* So many copies of 64 bytes, one after the other. */
void fake_copies(uint64_t count) { while (count--) fake_copy(64, 1, 3); }

/* A kernel that begins now and takes so long. */
void fake_kernel(uint64_t nanoseconds) {
    Call call = {.correlation = ++correlation};
    at(0, 307, &call);
    uint8_t kernel[KERNEL] = {10};
    uint64_t begun = now(), done = begun + nanoseconds;
    memcpy(kernel + 16, &begun, 8); memcpy(kernel + 24, &done, 8); memcpy(kernel + 92, &call.correlation, 4);
    if (on) append(kernel, sizeof kernel);
    at(1, 307, &call);
}

/* cuMemHostAlloc (operation 1) or cuMemFreeHost (2) of pinned memory at this address, which takes 300 us. */
void fake_pinned(uint32_t operation, uint64_t address, uint64_t bytes) {
    uint32_t number = operation == 1 ? 131 : 130;
    Call call = {.correlation = ++correlation};
    at(0, number, &call);
    uint64_t begun = now();
    uint8_t memory[MEMORY] = {0};
    uint32_t head[4] = {49, operation, 2, call.correlation};
    uint64_t values[3] = {address, bytes, begun};
    memcpy(memory, head, 16); memcpy(memory + 16, values, 24);
    if (on) append(memory, sizeof memory);
    until(begun + 300000);
    at(1, number, &call);
}

/* cuMemAllocManaged of so many bytes. */
void fake_managed(uint64_t bytes) {
    Call call = {.correlation = ++correlation};
    at(0, 371, &call);
    uint8_t memory[MEMORY] = {0};
    uint32_t head[4] = {49, 1, 5, call.correlation};
    uint64_t values[3] = {1ull << 40, bytes, now()};
    memcpy(memory, head, 16); memcpy(memory + 16, values, 24);
    if (on) append(memory, sizeof memory);
    at(1, 371, &call);
}

/* cuMemPrefetchAsync, which moves nothing by itself. */
void fake_prefetch(void) {
    Call call = {.correlation = ++correlation};
    at(0, 716, &call);
    at(1, 716, &call);
}

/* A counter of managed memory now: kinds are 1 to the GPU, 2 to the host (of which the cause is 1 asked for, 2 a fault,
   4 the GPU's memory was full), 3 a fault of the CPU, 4 one of the GPU. */
void fake_counter(uint32_t which, uint64_t value, uint32_t cause, uint64_t nanoseconds) {
    uint8_t counter[COUNTER] = {25};
    uint64_t values[3] = {value, now(), now() + nanoseconds};
    memcpy(counter + 4, &which, 4); memcpy(counter + 8, values, 24); memcpy(counter + 56, &cause, 4);
    if (kinds[25]) append(counter, sizeof counter);
}

static uint64_t late_until;
/* cuStreamSynchronize that waits so long, and for copies of fake_late. */
void fake_wait(uint64_t nanoseconds) {
    Call call = {.correlation = ++correlation};
    at(0, 126, &call);
    until(now() + nanoseconds);
    until(late_until);
    at(1, 126, &call);
}

/* As Tensor.cpu: a copy to the host, and the wait for it. */
void fake_copy_and_wait(const void *host, uint64_t bytes, int source, int target) {
    fake_copy_of(host, bytes, source, target);
    fake_wait(0);
}

/* An asynchronous copy between host and pinned memory, by cuMemcpyDtoHAsync (279) or cuMemcpyHtoDAsync (277): 50
   nanoseconds a byte by its record; the data moves when its stream is waited for. */
static struct late { void *target; const void *source; uint64_t bytes, stream; } late[64];
static int lates;
void fake_late(void *target, const void *source, uint64_t bytes, uint64_t stream, int to_host) {
    struct late parameters = {target, source, bytes, stream};
    Call call = {.correlation = ++correlation, .params = &parameters};
    uint32_t number = to_host ? 279 : 277;
    at(0, number, &call);
    late[lates++ % 64] = parameters;
    uint64_t begun = now() + 1000, done = late_until = begun + 50 * bytes;
    uint8_t copy[MEMCPY] = {1};
    copy[4] = to_host ? 2 : 1; copy[5] = to_host ? 3 : 2; copy[6] = to_host ? 2 : 3; copy[7] = 1;
    memcpy(copy + 8, &bytes, 8); memcpy(copy + 16, &begun, 8); memcpy(copy + 24, &done, 8);
    memcpy(copy + 44, &call.correlation, 4);
    if (on) append(copy, sizeof copy);
    at(1, number, &call);
}
/* The driver's functions that PinScope calls to wait. A stream above 100 is captured into a graph. */
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuStreamIsCapturing(uint64_t stream, int *status) { *status = stream > 100; return 0; }
int cuStreamSynchronize(uint64_t stream) {
    Call call = {.correlation = ++correlation};
    at(0, 126, &call);
    int left = 0;
    for (int each = 0; each < lates; each++)
        if (late[each].stream == stream) memcpy(late[each].target, late[each].source, late[each].bytes);
        else late[left++] = late[each];
    lates = left;
    at(1, 126, &call);
    return 0;
}

/* A call of a function of the driver (domain 1) or the runtime (2) that returns this, with the first two arguments; the
   runtime calls the driver's, if it is given, under the same correlation id. */
static void returning(uint32_t domain, uint32_t number, const char *name, int result, const void **arguments) {
    Call call = {.name = name, .params = arguments, .result = &result, .correlation = correlation};
    for (call.site = 0; call.site < 2; call.site++)
        if (callback && enabled[domain][number]) callback(NULL, domain, number, &call);
}
int fake_call(uint32_t number, const char *name, uint32_t inside, const char *inside_name, int result, uint64_t address,
              uint64_t bytes) {
    const void *arguments[2] = {(void *)address, (void *)bytes};
    correlation++;
    if (inside) returning(1, inside, inside_name, result, arguments);
    if (number) returning(2, number, name, result, arguments);
    return result;
}
/* cudaLaunchKernel of a thread that runs no Python, and that this one waits for. */
static void *launch(void *result) {
    fake_call(211, "cudaLaunchKernel_v7000", 307, "cuLaunchKernel", (int)(intptr_t)result, 0, 0);
    return NULL;
}
void fake_launch_elsewhere(int result) {
    pthread_t thread;
    pthread_create(&thread, NULL, launch, (void *)(intptr_t)result);
    pthread_join(thread, NULL);
}

/* What a program's calls of NVTX do where NVTX_INJECTION64_PATH names this library: CUPTI calls back as they return. */
typedef struct { const char *name; const void *params; const void *result; } NvtxData;
static void *strings[16];
static void nvtx(uint32_t number, const void *params, const void *result) {
    NvtxData data = {"", params, result};
    const char *injected = getenv("NVTX_INJECTION64_PATH");
    if (callback && injected && enabled[5][number]) ((void (*)(void *, uint32_t, uint32_t, const NvtxData *))callback)(NULL, 5, number, &data);
}
void fake_push(const char *name) { nvtx(8, &name, NULL); }
void fake_pop(void) { const void *none = NULL; nvtx(11, &none, NULL); }
/* A range of a domain, as the package nvtx makes it: with a registered string. */
void fake_push_in(uint64_t domain, const char *name) {
    static int count;
    struct { uint64_t domain; const char *text; } registering = {domain, name};
    void *handle = &strings[count++ % 16];
    nvtx(39, &registering, &handle);
    uint8_t attributes[48] = {3, 0, 48};
    attributes[32] = 3; memcpy(attributes + 40, &handle, 8);
    struct { uint64_t domain; const void *attributes; } pushing = {domain, attributes};
    nvtx(33, &pushing, NULL);
}
void fake_pop_in(uint64_t domain) { nvtx(34, &domain, NULL); }
