/* A program that uses the driver's library as it is told, a line of input at a time:
 *
 *   alloc BYTES FLAGS     through a wrapper that keeps the arguments, as the CUDA runtime does
 *   local BYTES FLAGS     into a local variable
 *   far BYTES FLAGS       into a variable that is overwritten at once
 *   old BYTES             by cuMemAllocHost
 *   map BYTES             ordinary memory, touched; nothing is pinned
 *   register ADDRESS BYTES FLAGS, unregister ADDRESS, free ADDRESS
 *   pairs COUNT           registers and unregisters one page so often
 *   gpu BYTES             address space that stands for a GPU's memory
 *   h2d TO FROM BYTES, d2h …, any …, 2d …   copies; "many COUNT BYTES" so often, and gives the nanoseconds of one
 *   reset                 ends the device's context
 *   thread                does the next command in a thread of its own
 *   fork                  makes a child that waits until this process ends
 *   exec                  becomes this program anew
 *
 * Answers each with a line: what the call returned, and an address.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

extern int cuMemHostAlloc(void **, size_t, unsigned);
extern int cuMemAllocHost_v2(void **, size_t);
extern int cuMemFreeHost(void *);
extern int cuMemHostRegister_v2(void *, size_t, unsigned);
extern int cuMemHostUnregister(void *);
extern int cuDevicePrimaryCtxReset_v2(int);
extern int cuMemcpyHtoD_v2(void *, const void *, size_t);
extern int cuMemcpyHtoDAsync_v2(void *, const void *, size_t);
extern int cuMemcpyDtoHAsync_v2_ptsz(void *, const void *, size_t);
extern int cuMemcpyAsync(void *, const void *, size_t);
extern int cuMemcpy2D_v2(void *, const void *, size_t);

static volatile int last;
static void *far_away[1 << 16];

__attribute__((noipa)) static void initialise(void) { last = 0; }

__attribute__((noipa)) static int wrapper(void **result, size_t bytes, unsigned flags) {
    initialise();
    int status = cuMemHostAlloc(result, bytes, flags);
    if (status) *result = NULL;
    last = status;
    return status;
}

__attribute__((noipa)) static void *local(size_t bytes, unsigned flags) {
    void *memory = NULL;
    last = cuMemHostAlloc(&memory, bytes, flags);
    return memory;
}

static void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, bytes);
    return memory;
}

static void *command(void *line) {
    static void *result;
    char word[32] = "";
    unsigned long one = 0, two = 0, three = 0;
    sscanf(line, "%31s %li %li %li", word, (long *)&one, (long *)&two, (long *)&three);
    result = (void *)one;
    last = 0;
    if (!strcmp(word, "alloc")) wrapper(&result, one, two);
    if (!strcmp(word, "local")) result = local(one, two);
    if (!strcmp(word, "far")) {
        last = cuMemHostAlloc(&far_away[4242], one, two);
        result = far_away[4242];
        far_away[4242] = NULL;
    }
    if (!strcmp(word, "old")) last = cuMemAllocHost_v2(&result, one);
    if (!strcmp(word, "map")) result = map(one);
    if (!strcmp(word, "register")) last = cuMemHostRegister_v2((void *)one, two, three);
    if (!strcmp(word, "unregister")) last = cuMemHostUnregister((void *)one);
    if (!strcmp(word, "free")) last = cuMemFreeHost((void *)one);
    if (!strcmp(word, "reset")) last = cuDevicePrimaryCtxReset_v2(0);
    if (!strcmp(word, "gpu")) result = mmap(NULL, one, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(word, "h2d")) last = cuMemcpyHtoD_v2((void *)one, (void *)two, three);
    if (!strcmp(word, "d2h")) last = cuMemcpyDtoHAsync_v2_ptsz((void *)one, (void *)two, three);
    if (!strcmp(word, "any")) last = cuMemcpyAsync((void *)one, (void *)two, three);
    if (!strcmp(word, "2d")) last = cuMemcpy2D_v2((void *)one, (void *)two, three);
    if (!strcmp(word, "many")) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (unsigned long i = 0; i < one; i++) last |= cuMemcpyHtoDAsync_v2(line, line, two);
        clock_gettime(CLOCK_MONOTONIC, &end);
        result = (void *)(((end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec) / (long)one);
    }
    if (!strcmp(word, "pairs")) {
        void *page = map(4096);
        for (unsigned long i = 0; i < one; i++) last |= cuMemHostRegister_v2(page, 4096, 0) | cuMemHostUnregister(page);
    }
    if (!strcmp(word, "fork")) {
        pid_t child = fork();
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
        result = (void *)(long)child;
    }
    if (!strcmp(word, "exec")) execl("/proc/self/exe", "again", NULL);
    return result;
}

int main(void) {
    char line[256];
    setbuf(stdin, NULL); /* exec leaves unread lines to the next program */
    printf("0 0x0\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        void *result;
        if (!strncmp(line, "thread", 6)) {
            pthread_t thread;
            if (!fgets(line, sizeof line, stdin)) return 1;
            pthread_create(&thread, NULL, command, line);
            pthread_join(thread, &result);
        } else {
            result = command(line);
        }
        printf("%d %p\n", last, result);
        fflush(stdout);
    }
    return 0;
}
