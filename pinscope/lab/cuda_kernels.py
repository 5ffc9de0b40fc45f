"""CUDA C of the kernels that the ``cuda`` lab launches: patterns, copies by threads, a compute load."""

SOURCE = r"""
typedef unsigned long long u64;

extern "C" __device__ __forceinline__ u64 expected(const u64* block, u64 length, u64 index, u64 offset, u64 key) {
    return block[(index + offset) % length] ^ key;
}

extern "C" __device__ __forceinline__ void lay(
        u64* words, u64 count, const u64* block, u64 length, u64 offset, u64 key) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        words[i] = expected(block, length, i, offset, key);
}

extern "C" __device__ __forceinline__ void check(
        const u64* words, u64 count, const u64* block, u64 length, u64 offset, u64 key, u64* wrong) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 mine = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        mine += __ldcv(words + i) != expected(block, length, i, offset, key);
    for (int reach = 16; reach; reach /= 2) mine += __shfl_down_sync(0xffffffff, mine, reach);
    if (mine && threadIdx.x % 32 == 0) atomicAdd(wrong, mine);  // one a warp: wrong data must not slow the kernel
}

// 16 bytes a thread and turn, neighbours side by side; the tail of 8 bytes goes to one thread.
extern "C" __global__ void copy_words(u64* target, const u64* source, u64 count) {
    ulonglong2* wide_target = (ulonglong2*)target;
    const ulonglong2* wide_source = (const ulonglong2*)source;
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 i = first; i < count / 2; i += step) wide_target[i] = wide_source[i];
    if (first == 0 && count % 2) target[count - 1] = source[count - 1];
}

// Both ways at once: even warps copy to the device, odd ones to the host, 16 bytes a thread. So reads and writes over
// the link stay in step; as two kernels, the writes, which wait for no answer, crowd the requests of the reads out.
extern "C" __global__ void copy_both_ways(
        u64* to_device, const u64* from_host, u64* to_host, const u64* from_device, u64 count) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    bool out = thread / 32 % 2;
    u64 i = thread / 64 * 32 + thread % 32;
    u64* target = out ? to_host : to_device;
    const u64* source = out ? from_device : from_host;
    if (i < count / 2) ((ulonglong2*)target)[i] = ((const ulonglong2*)source)[i];
    if (i == 0 && count % 2) target[count - 1] = source[count - 1];
}

// Holds its stream until the word in host memory is the value or a later one.
extern "C" __global__ void wait_for_word(volatile unsigned* word, unsigned value) {
    if (threadIdx.x == 0) while ((int)(*word - value) < 0) {}
}

// action: 0 none, 1 consume (check when the load starts), 2 produce (write when the load ends).
extern "C" __global__ void compute_load(
        u64 iterations, int action, u64* words, u64 count,
        const u64* block, u64 length, u64 offset, u64 key, u64* wrong, float* sink) {
    if (action == 1) check(words, count, block, length, offset, key, wrong);
    float value = threadIdx.x;
    for (u64 i = 0; i < iterations; ++i) value = fmaf(value, 0.999f, 0.5f);  // one chain: its length is its time
    if (value == -1.0f) *sink = value;  // never true; keeps the chain from being optimised away
    if (action == 2) lay(words, count, block, length, offset, key);
}
"""
