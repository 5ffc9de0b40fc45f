// Kernels that compare what was moved, and that keep the GPU busy beside it.
typedef unsigned long long u64;

// Words that are not as they should be: those of a chosen piece as in `chosen`, all others as in `rest`.
extern "C" __global__ void count_wrong(
        const u64* words, u64 count, const long long* number, u64 piece, const u64* chosen, const u64* rest,
        u64* wrong) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 mine = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        long long from = number[i / piece];
        mine += __ldcv(words + i) != (from < 0 ? rest[i] : chosen[(u64)from * piece + i % piece]);
    }
    for (int reach = 16; reach; reach /= 2) mine += __shfl_down_sync(0xffffffff, mine, reach);
    if (mine && threadIdx.x % 32 == 0) atomicAdd(wrong, mine);
}

// One block on each multiprocessor takes items of work until none is left: one that is slowed down takes fewer. Four
// chains a thread keep the arithmetic units busy, and registers stay free for another kernel's block.
extern "C" __global__ void __launch_bounds__(512) busy(unsigned* next, unsigned items, unsigned rounds, float* sink) {
    __shared__ unsigned item;
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (;;) {
        if (threadIdx.x == 0) item = atomicAdd(next, 1u);
        __syncthreads();
        unsigned mine = item;
        __syncthreads();
        if (mine >= items) break;
        #pragma unroll 8
        for (unsigned i = 0; i < rounds; ++i) {
            a = fmaf(a, 0.999f, 0.5f); b = fmaf(b, 0.999f, 0.5f); c = fmaf(c, 0.999f, 0.5f); d = fmaf(d, 0.999f, 0.5f);
        }
    }
    if (a + b + c + d == -1.0f) *sink = a;  // never true; keeps the chains from being optimised away
}
