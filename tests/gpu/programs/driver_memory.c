/* Takes host memory by the driver's own calls and gives it back, a step for each line of input:
 *
 *   driver_memory BYTES
 *
 * ready (it has a context), created (not mapped), mapped (for CPU and GPU, the handle given back), retained, unmapped,
 * released, elsewhere (as much on the GPU), pool (an empty pool of host memory), taken (all bytes, and 5000), given (the
 * bytes), end (the rest, and the pool). BYTES is a multiple of 2 MiB. It knows nothing of PinScope.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(CUresult status, const char *call) {
    if (status == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %d\n", call, status);
    exit(1);
}
#define DO(call) check(call, #call)

static void step(const char *word) {
    char line[64];
    printf("%s\n", word);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

static CUmemGenericAllocationHandle created(size_t bytes, CUmemLocationType place) {
    CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = place};
    CUmemGenericAllocationHandle handle;
    DO(cuMemCreate(&handle, bytes, &kind, 0));
    return handle;
}

static CUdeviceptr mapped(size_t bytes, CUmemGenericAllocationHandle handle) {
    CUmemAccessDesc access[2] = {
        {.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {.location.type = CU_MEM_LOCATION_TYPE_DEVICE, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    CUdeviceptr place;
    DO(cuMemAddressReserve(&place, bytes, 0, 0, 0));
    DO(cuMemMap(place, bytes, 0, handle, 0));
    DO(cuMemSetAccess(place, bytes, access, 2));
    return place;
}

int main(int count, char **words) {
    size_t bytes = count > 1 ? strtoull(words[1], NULL, 10) : 0;
    CUmemGenericAllocationHandle handle, again;
    CUmemPoolProps kind = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA};
    CUmemoryPool pool;
    CUcontext context;
    CUdeviceptr place, large, small;
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    step("ready");
    handle = created(bytes, CU_MEM_LOCATION_TYPE_HOST_NUMA);
    step("created");
    place = mapped(bytes, handle);
    memset((void *)place, 1, bytes);
    DO(cuMemRelease(handle));
    step("mapped");
    DO(cuMemRetainAllocationHandle(&again, (void *)place));
    step("retained");
    DO(cuMemUnmap(place, bytes));
    step("unmapped");
    DO(cuMemRelease(again));
    step("released");
    handle = created(bytes, CU_MEM_LOCATION_TYPE_DEVICE);
    step("elsewhere");
    DO(cuMemRelease(handle));
    DO(cuMemPoolCreate(&pool, &kind));
    step("pool");
    DO(cuMemAllocFromPoolAsync(&large, bytes, pool, NULL));
    DO(cuMemAllocFromPoolAsync(&small, 5000, pool, NULL));
    DO(cuCtxSynchronize());
    step("taken");
    DO(cuMemFreeAsync(large, NULL));
    DO(cuCtxSynchronize());
    step("given");
    DO(cuMemFree(small));
    DO(cuMemPoolDestroy(pool));
    step("end");
    return 0;
}
