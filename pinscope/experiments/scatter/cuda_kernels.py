"""CUDA C of the kernels of this experiment: the one that moves pieces, and the one that compares them."""

THREADS = 512
"""Of a block."""

SOURCE = r"""
typedef unsigned long long u64;

// Piece p lies at place[p] in the area and at p in the row. Each thread reads four times 16 bytes before it writes:
// what is under way hides the link's latency. Neighbours are side by side, so a warp moves 512 bytes at a time.
extern "C" __global__ void __launch_bounds__(512) move_pieces(
        uint4* area, uint4* row, const int* place, unsigned piece, unsigned count, int gather) {
    unsigned step = gridDim.x * blockDim.x;
    for (unsigned first = blockIdx.x * blockDim.x + threadIdx.x; first < count; first += 4 * step) {
        uint4 words[4];
        size_t there[4];
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            unsigned i = first + k * step;
            if (i < count) {
                there[k] = (size_t)place[i / piece] * piece + i % piece;
                words[k] = gather ? area[there[k]] : row[i];
            }
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            unsigned i = first + k * step;
            if (i < count) {
                if (gather) row[i] = words[k];
                else area[there[k]] = words[k];
            }
        }
    }
}

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
"""
