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
