// What one more copy takes, by other means than PinScope's: a host function holds the stream until 64 copies are queued.
// Prints lines "h2d BYTES MICROSECONDS", the median of 15.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPIES = 64, TIMES = 15, LARGEST = 1 << 20 };

static void check(cudaError_t error, int line) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check((call), __LINE__)

static volatile int go;

static void CUDART_CB hold(void* nothing) {
    (void)nothing;
    while (!go) {}
}

static int compare(const void* one, const void* other) {
    float a = *(const float*)one, b = *(const float*)other;
    return (a > b) - (a < b);
}

int main(void) {
    void *host, *device;
    cudaStream_t stream;
    cudaEvent_t start, end;
    CHECK(cudaHostAlloc(&host, LARGEST, cudaHostAllocDefault));
    memset(host, 1, LARGEST);
    CHECK(cudaMalloc(&device, LARGEST));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    const size_t sizes[] = {4096, 65536, 1048576};
    for (int to_device = 1; to_device >= 0; --to_device)
        for (int size = 0; size < 3; ++size) {
            float taken[TIMES];
            for (int time = -3; time < TIMES; ++time) {
                go = 0;
                CHECK(cudaLaunchHostFunc(stream, hold, NULL));
                CHECK(cudaEventRecord(start, stream));
                for (int copy = 0; copy < COPIES; ++copy)
                    CHECK(to_device ? cudaMemcpyAsync(device, host, sizes[size], cudaMemcpyHostToDevice, stream)
                                    : cudaMemcpyAsync(host, device, sizes[size], cudaMemcpyDeviceToHost, stream));
                CHECK(cudaEventRecord(end, stream));
                go = 1;
                CHECK(cudaStreamSynchronize(stream));
                float milliseconds;
                CHECK(cudaEventElapsedTime(&milliseconds, start, end));
                if (time >= 0) taken[time] = milliseconds * 1000 / COPIES;
            }
            qsort(taken, TIMES, sizeof taken[0], compare);
            printf("%s %zu %.3f\n", to_device ? "h2d" : "d2h", sizes[size], taken[TIMES / 2]);
        }
    return 0;
}
