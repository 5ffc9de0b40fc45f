/* Holds host memory in one way until its input closes: a program that knows nothing of PinScope.
 *
 *   holder KIND BYTES [NAME]
 *
 * KIND: none, alloc, write_combined, mapped, managed (touched by the CPU), register (anonymous memory), shm (POSIX
 * shared memory NAME: the first to come makes and fills it), ordinary (shared anonymous memory that CUDA knows nothing
 * of, touched), created (cuMemCreate on the host, mapped for CPU and GPU), pool (a host memory pool, touched), fork
 * (alloc, then a child that waits as well and ends with its parent) or orphan (the same, but the child outlives its
 * parent and ends with its input).
 * Prints one line when it has a context, waits for a line, takes the memory, prints a line, waits for a line, gives it
 * back, prints a line, and waits for the end of its input.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(cudaError_t status, const char *call) {
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
        exit(1);
    }
}

static void step(const char *word) {
    char line[64];
    printf("%s\n", word);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

static void *shared(const char *name, size_t bytes) {
    int first = 1, file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (file < 0) {
        first = 0;
        file = shm_open(name, O_RDWR, 0600);
    }
    if (file < 0 || ftruncate(file, (off_t)bytes)) exit(1);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) exit(1);
    if (first) memset(memory, 0xAB, bytes);
    close(file);
    return memory;
}

/* The driver's own calls have no wrappers in the runtime; the library is loaded already. */
static void *driver(const char *name) {
    void *call = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (!call) exit(1);
    return call;
}

static void check_driver(CUresult status, const char *call) {
    if (status != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", call, status);
        exit(1);
    }
}

/* The size grows to what the driver hands out. */
static void *created(size_t *bytes, CUmemGenericAllocationHandle *handle) {
    CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemAccessDesc access[2] = {0};
    CUdeviceptr place;
    size_t step;
    kind.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    access[0].location = kind.location;
    access[1].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[0].flags = access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) =
        driver("cuMemGetAllocationGranularity");
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long) =
        driver("cuMemCreate");
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long) = driver("cuMemAddressReserve");
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) = driver("cuMemMap");
    CUresult (*allow)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) = driver("cuMemSetAccess");
    check_driver(granularity(&step, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "cuMemGetAllocationGranularity");
    *bytes = (*bytes + step - 1) / step * step;
    check_driver(create(handle, *bytes, &kind, 0), "cuMemCreate");
    check_driver(reserve(&place, *bytes, 0, 0, 0), "cuMemAddressReserve");
    check_driver(map(place, *bytes, 0, *handle, 0), "cuMemMap");
    check_driver(allow(place, *bytes, access, 2), "cuMemSetAccess");
    return (void *)place;
}

static void give_back_created(void *memory, size_t bytes, CUmemGenericAllocationHandle handle) {
    CUresult (*unmap)(CUdeviceptr, size_t) = driver("cuMemUnmap");
    CUresult (*release)(CUmemGenericAllocationHandle) = driver("cuMemRelease");
    CUresult (*forget)(CUdeviceptr, size_t) = driver("cuMemAddressFree");
    check_driver(unmap((CUdeviceptr)memory, bytes), "cuMemUnmap");
    check_driver(release(handle), "cuMemRelease");
    check_driver(forget((CUdeviceptr)memory, bytes), "cuMemAddressFree");
}

static void *pooled(size_t bytes, cudaMemPool_t *pool) {
    struct cudaMemPoolProps kind = {.allocType = cudaMemAllocationTypePinned};
    void *memory = NULL;
    kind.location.type = cudaMemLocationTypeHostNuma;
    check(cudaMemPoolCreate(pool, &kind), "cudaMemPoolCreate");
    check(cudaMallocFromPoolAsync(&memory, bytes, *pool, 0), "cudaMallocFromPoolAsync");
    check(cudaStreamSynchronize(0), "cudaStreamSynchronize");
    memset(memory, 1, bytes);
    return memory;
}

static void give_back_pooled(void *memory, cudaMemPool_t pool) {
    check(cudaFreeAsync(memory, 0), "cudaFreeAsync");
    check(cudaStreamSynchronize(0), "cudaStreamSynchronize");
    check(cudaMemPoolDestroy(pool), "cudaMemPoolDestroy");
}

int main(int count, char **words) {
    if (count < 3) return 2;
    const char *kind = words[1];
    size_t bytes = strtoull(words[2], NULL, 10);
    void *memory = NULL;
    pid_t child = 0;
    CUmemGenericAllocationHandle handle = 0;
    cudaMemPool_t pool = NULL;
    int orphan = !strcmp(kind, "orphan"), forks = orphan || !strcmp(kind, "fork");
    int registered = !strcmp(kind, "register") || !strcmp(kind, "shm");
    check(cudaFree(NULL), "cudaFree");
    step("ready");
    if (!strcmp(kind, "alloc") || forks) check(cudaHostAlloc(&memory, bytes, 0), "cudaHostAlloc");
    if (!strcmp(kind, "write_combined")) check(cudaHostAlloc(&memory, bytes, cudaHostAllocWriteCombined), kind);
    if (!strcmp(kind, "mapped")) check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped), kind);
    if (!strcmp(kind, "managed")) {
        check(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal), kind);
        memset(memory, 1, bytes);
    }
    if (!strcmp(kind, "register")) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(memory, 1, bytes);
    }
    if (!strcmp(kind, "ordinary")) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        memset(memory, 1, bytes);
    }
    if (!strcmp(kind, "created")) memory = created(&bytes, &handle);
    if (!strcmp(kind, "pool")) memory = pooled(bytes, &pool);
    if (!strcmp(kind, "shm")) memory = shared(words[3], bytes);
    if (registered) check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "cudaHostRegister");
    pid_t parent = getpid();
    if (forks && !(child = fork())) {
        char byte;
        if (!orphan) prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) usleep(10000); /* the input is the parent's until its end */
        while (read(0, &byte, 1) > 0) continue;
        _exit(0);
    }
    step("held");
    if (child) {
        kill(child, 9);
        waitpid(child, NULL, 0);
    }
    if (registered) check(cudaHostUnregister(memory), "cudaHostUnregister");
    else if (!strcmp(kind, "ordinary")) munmap(memory, bytes);
    else if (!strcmp(kind, "created")) give_back_created(memory, bytes, handle);
    else if (!strcmp(kind, "pool")) give_back_pooled(memory, pool);
    else if (!strcmp(kind, "managed")) check(cudaFree(memory), "cudaFree");
    else if (memory) check(cudaFreeHost(memory), "cudaFreeHost");
    if (!strcmp(kind, "shm")) shm_unlink(words[3]);
    step("released");
    return 0;
}
