/* Copies from the GPU into fresh memory, memory written before, and pinned memory: a line each, "kind seconds".
   Usage: from_gpu BYTES. Medians of nine turns, all kinds in each. */
#define _GNU_SOURCE
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { TURNS = 9, FRESH = 0, WRITTEN = 1, PINNED = 2 };
static const char *NAMES[] = {"back_fresh", "back_plain", "back_pinned"};

static void check(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void *map(size_t nbytes) {
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(memory, nbytes, MADV_NOHUGEPAGE);
    return memory;
}

static double copy(void *target, const void *source, size_t nbytes) {
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    check(cudaMemcpy(target, source, nbytes, cudaMemcpyDeviceToHost));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return (double)(ended.tv_sec - begun.tv_sec) + 1e-9 * (double)(ended.tv_nsec - begun.tv_nsec);
}

static int ascending(const void *first, const void *second) {
    double a = *(const double *)first, b = *(const double *)second;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    size_t nbytes = count > 1 ? strtoull(arguments[1], NULL, 10) : (size_t)1 << 30;
    void *device, *pinned, *written = map(nbytes);
    double seconds[3][TURNS + 1];
    check(cudaMalloc(&device, nbytes));
    check(cudaMemset(device, 1, nbytes));
    check(cudaHostAlloc(&pinned, nbytes, cudaHostAllocDefault));
    memset(written, 1, nbytes);
    for (int turn = 0; turn <= TURNS; turn++) { /* the first is the warm-up */
        void *fresh = map(nbytes);
        seconds[FRESH][turn] = copy(fresh, device, nbytes);
        munmap(fresh, nbytes);
        seconds[WRITTEN][turn] = copy(written, device, nbytes);
        seconds[PINNED][turn] = copy(pinned, device, nbytes);
    }
    for (int kind = FRESH; kind <= PINNED; kind++) {
        qsort(seconds[kind] + 1, TURNS, sizeof(double), ascending);
        printf("%s %.9f\n", NAMES[kind], seconds[kind][1 + TURNS / 2]);
    }
    return 0;
}
