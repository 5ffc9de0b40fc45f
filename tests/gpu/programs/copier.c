/* Copies as it is told, through the driver API and the runtime API.
 *
 *   copier             makes a context; has pageable memory, and pinned memory from cudaHostAlloc
 *   copier BYTES       has registered so much besides
 *
 * Says "ready". Then, for each line "API DIRECTION MEMORY BYTES COUNT", it copies so often and answers with the
 * nanoseconds of one copy. DIRECTION is h2d or d2h; MEMORY pageable, pinned, old (registered at the start) or, after a
 * line "pin", late (cudaHostAlloc) and registered. A line "2d" copies in two dimensions.
 */
#define _GNU_SOURCE
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 128 << 20 };
typedef int (*copy_t)(void *, const void *, size_t);
typedef int (*async_t)(void *, const void *, size_t, void *);

static char *pageable, *pinned, *old, *late, *registered, *gpu;

static void *of_driver(const char *name) {
    void *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (!function) exit(3);
    return function;
}

static char *memory_of(const char *name) {
    return !strcmp(name, "pageable") ? pageable : !strcmp(name, "pinned") ? pinned : !strcmp(name, "old") ? old
           : !strcmp(name, "late")   ? late     : registered;
}

static int copy(const char *api, int to_gpu, char *host, size_t bytes, long count) {
    void *to = to_gpu ? gpu : host, *from = to_gpu ? host : gpu;
    enum cudaMemcpyKind kind = to_gpu ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    copy_t plain = (copy_t)of_driver(to_gpu ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2");
    async_t async = (async_t)of_driver(to_gpu ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyDtoHAsync_v2");
    copy_t by_address = (copy_t)of_driver("cuMemcpy");
    int failed = 0;
    for (long i = 0; i < count; i++) {
        if (!strcmp(api, "driver")) failed |= plain(to, from, bytes);
        if (!strcmp(api, "driver_async")) failed |= async(to, from, bytes, NULL);
        if (!strcmp(api, "driver_address")) failed |= by_address(to, from, bytes);
        if (!strcmp(api, "runtime")) failed |= cudaMemcpy(to, from, bytes, kind);
        if (!strcmp(api, "runtime_async")) failed |= cudaMemcpyAsync(to, from, bytes, kind, NULL);
        if (!strcmp(api, "runtime_address")) failed |= cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
    }
    return failed | cudaDeviceSynchronize();
}

int main(int argc, char **argv) {
    char line[256], api[32], direction[32], memory[32];
    size_t bytes, first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    long count;
    struct timespec begin, end;
    setbuf(stdout, NULL);
    if (cudaMalloc((void **)&gpu, BYTES) || cudaHostAlloc((void **)&pinned, BYTES, 0)) return 1;
    pageable = malloc(BYTES);
    memset(pageable, 1, BYTES);
    memset(pinned, 1, BYTES);
    if (first) {
        old = aligned_alloc(4096, first);
        memset(old, 1, first);
        if (cudaHostRegister(old, first, 0)) return 1;
    }
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "pin", 3)) {
            registered = aligned_alloc(4096, BYTES);
            memset(registered, 1, BYTES);
            printf("%d\n", cudaHostRegister(registered, BYTES, 0) | cudaHostAlloc((void **)&late, BYTES, 0));
        } else if (!strncmp(line, "2d", 2)) {
            printf("%d\n", cudaMemcpy2D(gpu, 4096, pinned, 8192, 4096, 16, cudaMemcpyHostToDevice));
        } else {
            if (sscanf(line, "%31s %31s %31s %zu %ld", api, direction, memory, &bytes, &count) != 5) return 2;
            clock_gettime(CLOCK_MONOTONIC, &begin);
            if (copy(api, !strcmp(direction, "h2d"), memory_of(memory), bytes, count)) return 1;
            clock_gettime(CLOCK_MONOTONIC, &end);
            printf("%ld\n", ((end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec) / count);
        }
    }
    return 0;
}
