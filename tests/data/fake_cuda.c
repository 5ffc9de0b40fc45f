/* A stand-in for CUDA's driver library: the entry points that take host memory, which really take and lock it.
 *
 * Small allocations share a chunk, as the driver's do. A flag of 0x100 makes a registration take 50 ms. Created memory
 * has one handle, whoever retains it, and is there as long as a handle or a mapping is; of pools the stand-in gives
 * nothing but addresses. The structures begin as the driver's do.
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

struct properties {
    int type, handle_types, place, number;
};
enum { DEFAULT_POOL = 7777 };

static struct made {
    size_t bytes;
    int handles, mappings;
} made[PIECES];
static struct mapping {
    char *start;
    size_t bytes;
    struct made *of;
} mappings[PIECES];

int cuMemCreate(unsigned long long *handle, size_t bytes, const struct properties *properties, unsigned long long flags) {
    struct made *new = made;
    while (new->handles || new->mappings) new++;
    if (!bytes || bytes % CHUNK || flags || properties->place < 1) return INVALID;
    *new = (struct made){bytes, 1, 0};
    *handle = (unsigned long long)(size_t)new;
    return OK;
}

int cuMemRelease(unsigned long long handle) {
    struct made *old = (struct made *)(size_t)handle;
    if (old->handles < 1) return INVALID;
    old->handles--;
    return OK;
}

int cuMemMap(char *start, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
    struct mapping *new = mappings;
    while (new->start) new++;
    *new = (struct mapping){start, bytes, (struct made *)(size_t)handle};
    if (offset + bytes > new->of->bytes || flags) return new->start = NULL, INVALID;
    new->of->mappings++;
    return OK;
}

int cuMemUnmap(char *start, size_t bytes) {
    for (struct mapping *old = mappings; old < mappings + PIECES; old++)
        if (old->start && old->start >= start && old->start + old->bytes <= start + bytes) {
            old->of->mappings--;
            old->start = NULL;
        }
    return OK;
}

int cuMemRetainAllocationHandle(unsigned long long *handle, char *address) {
    for (struct mapping *one = mappings; one < mappings + PIECES; one++)
        if (one->start && one->start <= address && address < one->start + one->bytes) {
            one->of->handles++;
            *handle = (unsigned long long)(size_t)one->of;
            return OK;
        }
    return INVALID;
}

int cuMemPoolCreate(void **pool, const struct properties *properties) {
    static size_t pools;
    *pool = (void *)++pools;
    return properties->place < 1 ? INVALID : OK;
}

int cuMemGetDefaultMemPool(void **pool, const int *place, int type) {
    (void)place;
    *pool = (void *)DEFAULT_POOL;
    return type == 1 ? OK : INVALID;
}

int cuMemPoolDestroy(void *pool) { return pool ? OK : INVALID; }

int cuMemAllocFromPoolAsync(void **result, size_t bytes, void *pool, void *stream) {
    static size_t given = 1ul << 40;
    (void)stream;
    *result = (void *)(given += bytes);
    return pool ? OK : INVALID;
}

int cuMemFreeAsync(void *memory, void *stream) {
    (void)stream;
    return memory ? OK : INVALID;
}

int cuDevicePrimaryCtxReset_v2(int device) {
    (void)device;
    for (int i = 0; i < PIECES; i++)
        if (registered[i].start) release(&registered[i]);
    return OK;
}
