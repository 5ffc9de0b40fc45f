/* A disk that fails, preloaded into a program (LD_PRELOAD): the n-th call that changes a file below a folder ends the
 * program as a power cut would, or fails.
 *
 * Counted are the calls that create, write, synchronize, cut, link, rename and remove. Set in the environment, or by
 * disk_set() in a program that runs already:
 *
 *   DISK_FOLDERS   which folders, by colon
 *   DISK_AT        which call, from 1 on; 0 or nothing: none
 *   DISK_DOES      kill, tear (half of the write is done first), or the name of an error: ENOSPC, EIO, EROFS
 *   DISK_LASTS     1: every call from that one on fails
 *   DISK_PROGRAM   only in a program with this in its command line
 *   DISK_COUNT     a file in whose first 8 bytes the calls are counted, also across programs
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folders[4096];
static long at, lasts, error, tears, kills;
static long own_count, *count = &own_count;

#define REAL(name) ({ static __typeof__(&name) found; if (!found) found = dlsym(RTLD_NEXT, #name); found; })

void disk_set(const char *where, long call, const char *does, long on)
{
    snprintf(folders, sizeof folders, "%s", where ? where : "");
    kills = does && (!strcmp(does, "kill") || !strcmp(does, "tear"));
    tears = does && !strcmp(does, "tear");
    error = !does ? 0 : !strcmp(does, "ENOSPC") ? ENOSPC : !strcmp(does, "EROFS") ? EROFS : EIO;
    lasts = on;
    at = call;
}

/* Count in the first 8 bytes of a file, which outlives the program. */
void disk_count(const char *file)
{
    int descriptor = REAL(open)(file, O_RDWR);
    void *map = descriptor < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (descriptor >= 0) close(descriptor);
    if (map != MAP_FAILED) count = map;
}

__attribute__((constructor)) static void begin(void)
{
    const char *call = getenv("DISK_AT"), *program = getenv("DISK_PROGRAM"), *file = getenv("DISK_COUNT");
    if (!getenv("DISK_FOLDERS")) return;
    if (program) {
        char line[4096];
        int descriptor = REAL(open)("/proc/self/cmdline", O_RDONLY);
        long length = descriptor < 0 ? 0 : read(descriptor, line, sizeof line - 1);
        if (descriptor >= 0) close(descriptor);
        for (long i = 0; i < length; i++) if (!line[i]) line[i] = ' ';
        line[length > 0 ? length : 0] = 0;
        if (!strstr(line, program)) return;
    }
    if (file) disk_count(file);
    disk_set(getenv("DISK_FOLDERS"), call ? atol(call) : 0, getenv("DISK_DOES"), getenv("DISK_LASTS") != 0);
}

static int below(const char *path)
{
    char copy[sizeof folders], *rest = copy, *folder;
    if (!folders[0] || !path) return 0;
    memcpy(copy, folders, sizeof copy);
    while ((folder = strsep(&rest, ":"))) {
        size_t length = strlen(folder);
        if (length && !strncmp(path, folder, length)) return 1;
    }
    return 0;
}

static int below_open(int descriptor)
{
    char link[64], path[PATH_MAX];
    if (!folders[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

/* Whether this call fails. It does not come back where the program ends here. */
static int fails(int writing)
{
    long call = __sync_add_and_fetch(count, 1);
    if (!at || call < at || (call > at && !lasts)) return 0;
    if (kills && (!tears || !writing)) kill(getpid(), SIGKILL);
    errno = error;
    return 1;
}

static long half(long done, size_t size)
{
    if (kills) kill(getpid(), SIGKILL);
    (void)done;
    (void)size;
    return -1;
}

ssize_t write(int descriptor, const void *data, size_t size)
{
    if (below_open(descriptor) && fails(1)) return tears ? half(REAL(write)(descriptor, data, size / 2), size) : -1;
    return REAL(write)(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t place)
{
    if (below_open(descriptor) && fails(1))
        return tears ? half(REAL(pwrite)(descriptor, data, size / 2, place), size) : -1;
    return REAL(pwrite)(descriptor, data, size, place);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t place)
{
    if (below_open(descriptor) && fails(1))
        return tears ? half(REAL(pwrite64)(descriptor, data, size / 2, place), size) : -1;
    return REAL(pwrite64)(descriptor, data, size, place);
}

ssize_t writev(int descriptor, const struct iovec *data, int pieces)
{
    if (below_open(descriptor) && fails(0)) return -1;
    return REAL(writev)(descriptor, data, pieces);
}

int fsync(int descriptor) { return below_open(descriptor) && fails(0) ? -1 : REAL(fsync)(descriptor); }
int fdatasync(int descriptor) { return below_open(descriptor) && fails(0) ? -1 : REAL(fdatasync)(descriptor); }

int ftruncate(int descriptor, off_t size)
{
    return below_open(descriptor) && fails(0) ? -1 : REAL(ftruncate)(descriptor, size);
}

int ftruncate64(int descriptor, off64_t size)
{
    return below_open(descriptor) && fails(0) ? -1 : REAL(ftruncate64)(descriptor, size);
}

int unlink(const char *path) { return below(path) && fails(0) ? -1 : REAL(unlink)(path); }

int unlinkat(int folder, const char *path, int flags)
{
    return below(path) && fails(0) ? -1 : REAL(unlinkat)(folder, path, flags);
}

int rename(const char *from, const char *to) { return below(to) && fails(0) ? -1 : REAL(rename)(from, to); }
int link(const char *from, const char *to) { return below(to) && fails(0) ? -1 : REAL(link)(from, to); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    return below(to) && fails(0) ? -1 : REAL(linkat)(from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode) { return below(path) && fails(0) ? -1 : REAL(mkdir)(path, mode); }

/* Creating counts as a change. On a disk that became read-only, opening for writing fails, too. */
static int refused(const char *path, int flags)
{
    if (!below(path)) return 0;
    struct stat status;
    int creates = (flags & O_TMPFILE) == O_TMPFILE || ((flags & O_CREAT) && stat(path, &status));
    if (creates) return fails(0);
    if (error == EROFS && lasts && at && *count >= at && (flags & O_ACCMODE) != O_RDONLY) {
        errno = EROFS;
        return 1;
    }
    return 0;
}

#define MODE(flags, last) ({ mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest; va_start(rest, last); mode = va_arg(rest, mode_t); va_end(rest); } mode; })

int open(const char *path, int flags, ...)
{
    mode_t mode = MODE(flags, flags);
    return refused(path, flags) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    mode_t mode = MODE(flags, flags);
    return refused(path, flags) ? -1 : REAL(open64)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    mode_t mode = MODE(flags, flags);
    return refused(path, flags) ? -1 : REAL(openat)(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...)
{
    mode_t mode = MODE(flags, flags);
    return refused(path, flags) ? -1 : REAL(openat64)(folder, path, flags, mode);
}
