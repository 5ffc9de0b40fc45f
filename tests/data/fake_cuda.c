/* A stand-in for CUDA's driver library: the entry points that take host memory, which really take and lock it.
 *
 * Small allocations share a chunk, as the driver's do. A flag of 0x100 makes a registration take 50 ms.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };
enum { PIECES = 8192, CHUNK = 2 << 20, SMALL = 1 << 20, SLOW = 0x100 };

static struct piece {
    char *start;
    size_t bytes;
} allocated[PIECES], registered[PIECES];
static char *chunk;
static size_t chunk_used = CHUNK;

static struct piece *find(struct piece *pieces, const void *start) {
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].start == start) return &pieces[i];
    return NULL;
}

static char *take(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED || mlock(memory, bytes) ? NULL : memory;
}

int cuMemHostAlloc(void **result, size_t bytes, unsigned flags) {
    struct piece *piece = find(allocated, NULL);
    (void)flags;
    if (!bytes || !piece) return INVALID;
    if (bytes >= SMALL) {
        piece->start = take(bytes);
    } else {
        if (chunk_used + bytes > CHUNK) chunk = take(CHUNK), chunk_used = 0;
        piece->start = chunk + chunk_used;
        chunk_used += (bytes + 511) / 512 * 512;
    }
    piece->bytes = bytes;
    *result = piece->start;
    return piece->start ? OK : INVALID;
}

int cuMemAllocHost_v2(void **result, size_t bytes) {
    struct piece *piece = find(allocated, NULL);
    if (bytes < SMALL || !piece) return INVALID;
    *result = piece->start = take(piece->bytes = bytes);
    return piece->start ? OK : INVALID;
}

int cuMemFreeHost(void *memory) {
    struct piece *piece = memory ? find(allocated, memory) : NULL;
    if (!piece) return INVALID;
    if (piece->bytes >= SMALL) munmap(piece->start, piece->bytes);
    piece->start = NULL;
    return OK;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    struct piece *piece = find(registered, NULL);
    if (!memory || !bytes || !piece) return INVALID;
    if (find(registered, memory)) return ALREADY_REGISTERED;
    if (flags & SLOW) usleep(50000);
    mlock(memory, bytes);
    piece->start = memory;
    piece->bytes = bytes;
    return OK;
}

static int release(struct piece *piece) {
    munlock(piece->start, piece->bytes);
    piece->start = NULL;
    return OK;
}

int cuMemHostUnregister(void *memory) {
    struct piece *piece = memory ? find(registered, memory) : NULL;
    return piece ? release(piece) : NOT_REGISTERED;
}

int cuDevicePrimaryCtxReset_v2(int device) {
    (void)device;
    for (int i = 0; i < PIECES; i++)
        if (registered[i].start) release(&registered[i]);
    return OK;
}

/* Copies reach no GPU: its memory, in the programs, is address space that nobody can read. */
#define COPY(name) \
    __attribute__((noipa)) int name(void *to, const void *from, size_t bytes) { return to && from && bytes ? OK : INVALID; }
COPY(cuMemcpyHtoD_v2)
COPY(cuMemcpyHtoDAsync_v2)
COPY(cuMemcpyDtoH_v2)
COPY(cuMemcpyDtoHAsync_v2_ptsz)
COPY(cuMemcpyAsync)
COPY(cuMemcpy2D_v2)
