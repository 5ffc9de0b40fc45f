// Moves 4096 pieces of 4 KiB from random places in 1 GiB of pinned memory to the GPU, by other means than PinScope's.
// Reads lines "loop", "batch", "queued", "copy_2d", "kernel BLOCKS"; answers each with the seconds from the first call
// until all pieces are there. "queued" is a batch while the stream is at work; "copy_2d" takes every other piece.
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

const size_t AREA = 1u << 30, PIECE = 4096, COUNT = 4096;
const int THREADS = 512, WARP = 32, WORDS = PIECE / sizeof(uint4), EACH = WORDS / WARP;

static void check(cudaError_t error, int line) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check((call), __LINE__)

// A warp takes a piece: all of its words are under way before the first is written.
__global__ void gather(const uint4* area, uint4* row, const int* place) {
    int lane = threadIdx.x % WARP, warps = gridDim.x * blockDim.x / WARP;
    for (int piece = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; piece < COUNT; piece += warps) {
        const uint4* source = area + (size_t)place[piece] * WORDS + lane;
        uint4 words[EACH];
        #pragma unroll
        for (int k = 0; k < EACH; ++k) words[k] = source[k * WARP];
        #pragma unroll
        for (int k = 0; k < EACH; ++k) row[(size_t)piece * WORDS + k * WARP + lane] = words[k];
    }
}

// Some 40 µs on a GPU at its clock.
__global__ void work() {
    for (long long begun = clock64(); clock64() - begun < 70000;) {}
}

int main() {
    char *area, *row;
    int* place;
    cudaStream_t stream;
    CHECK(cudaHostAlloc((void**)&area, AREA, cudaHostAllocDefault));
    memset(area, 1, AREA);
    CHECK(cudaMalloc((void**)&row, COUNT * PIECE));
    CHECK(cudaMalloc((void**)&place, COUNT * sizeof(int)));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<int> places(AREA / PIECE);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), std::mt19937(7));
    places.resize(COUNT);
    CHECK(cudaMemcpy(place, places.data(), COUNT * sizeof(int), cudaMemcpyHostToDevice));
    std::vector<void*> targets, sources;
    std::vector<size_t> sizes(COUNT, PIECE);
    for (size_t piece = 0; piece < COUNT; ++piece) {
        targets.push_back(row + piece * PIECE);
        sources.push_back(area + places[piece] * PIECE);
    }
    char line[64], way[32];
    int blocks = 0;
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%31s %d", way, &blocks) >= 1) {
        if (!strcmp(way, "queued")) work<<<1, 1, 0, stream>>>();
        auto begun = std::chrono::steady_clock::now();
        if (!strcmp(way, "loop")) {
            for (size_t piece = 0; piece < COUNT; ++piece)
                CHECK(cudaMemcpyAsync(targets[piece], sources[piece], PIECE, cudaMemcpyHostToDevice, stream));
        } else if (!strcmp(way, "batch") || !strcmp(way, "queued")) {
            cudaMemcpyAttributes attributes = {};
            attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
            size_t first = 0;
#if CUDART_VERSION >= 13000
            CHECK(cudaMemcpyBatchAsync(targets.data(), (const void**)sources.data(), sizes.data(), COUNT, &attributes,
                                       &first, 1, stream));
#else
            CHECK(cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), COUNT, &attributes, &first, 1,
                                       nullptr, stream));
#endif
        } else if (!strcmp(way, "copy_2d")) {
            CHECK(cudaMemcpy2DAsync(row, PIECE, area, 2 * PIECE, PIECE, COUNT, cudaMemcpyHostToDevice, stream));
        } else {
            gather<<<blocks, THREADS, 0, stream>>>((uint4*)area, (uint4*)row, place);
            CHECK(cudaGetLastError());
        }
        CHECK(cudaStreamSynchronize(stream));
        printf("%.9f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
        fflush(stdout);
    }
    return 0;
}
