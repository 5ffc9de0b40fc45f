/* Holds host memory in one way until its input closes: a program that knows nothing of PinScope.
 *
 *   holder KIND BYTES [NAME]
 *
 * KIND: none, alloc, write_combined, mapped, managed (touched by the CPU), register (anonymous memory), shm (POSIX
 * shared memory NAME: the first to come makes and fills it), or fork (alloc, then a child that waits as well).
 * Prints one line when it has a context, waits for a line, takes the memory, prints a line, waits for a line, gives it
 * back, prints a line, and waits for the end of its input.
 */
#include <cuda_runtime.h>
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

int main(int count, char **words) {
    if (count < 3) return 2;
    const char *kind = words[1];
    size_t bytes = strtoull(words[2], NULL, 10);
    void *memory = NULL;
    pid_t child = 0;
    int registered = !strcmp(kind, "register") || !strcmp(kind, "shm");
    check(cudaFree(NULL), "cudaFree");
    step("ready");
    if (!strcmp(kind, "alloc") || !strcmp(kind, "fork")) check(cudaHostAlloc(&memory, bytes, 0), "cudaHostAlloc");
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
    if (!strcmp(kind, "shm")) memory = shared(words[3], bytes);
    if (registered) check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "cudaHostRegister");
    if (!strcmp(kind, "fork") && !(child = fork())) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    step("held");
    if (child) {
        kill(child, 9);
        waitpid(child, NULL, 0);
    }
    if (registered) check(cudaHostUnregister(memory), "cudaHostUnregister");
    else if (!strcmp(kind, "managed")) check(cudaFree(memory), "cudaFree");
    else if (memory) check(cudaFreeHost(memory), "cudaFreeHost");
    if (!strcmp(kind, "shm")) shm_unlink(words[3]);
    step("released");
    return 0;
}
