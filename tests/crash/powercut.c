/* A preloaded library that remembers what a power cut could take away.
 *
 * A process that is killed loses nothing it has written: the operating system
 * keeps the bytes. A power cut takes whatever was not synced. This library
 * watches the files under one directory (POWERCUT_DATA) and keeps, in another
 * one on the same file system (POWERCUT_ASIDE), all that is needed to take
 * unsynced changes back after the process was killed:
 *
 *   f<inode>   a hard link to each file seen, so that a removed or replaced
 *              file can come back, and no inode number is used twice
 *   u<inode>   the undo log of a file: one record for each change of its bytes
 *              since it was last synced; emptied by fsync and fdatasync
 *   d<inode>   the names in a directory at its last fsync, one per line:
 *              inode, kind (f or d), name
 *
 *   record     offset, length, kind (0 write, 1 set length, 2 stable), length of
 *              the file before, count of saved bytes (five 64-bit numbers), then
 *              the saved bytes: what was in the file from `offset` on (what is
 *              missing were zeros, or lay behind the end). Kind 2 is no change:
 *              these bytes became stable as they were then, and no others
 *
 * A write that is synced by itself (O_DSYNC, O_SYNC, RWF_DSYNC, RWF_SYNC) makes its
 * own bytes stable. Where nothing else is unsynced the undo log is emptied after it,
 * otherwise a record of kind 2 follows. A kill before that leaves an unsynced write.
 *
 * A record is complete before the change is made, so that at any moment the
 * undo log covers all that may have happened. Names are not followed operation
 * by operation: their state at the last directory sync is compared with what is
 * there after the kill. So calls that go around the C library (some crates
 * rename that way) are seen all the same. Bytes are only watched through the C
 * library: write, pwrite, writev, pwritev, pwritev2, ftruncate, fallocate, O_TRUNC.
 * Mapped memory is not watched; the server does not write through it.
 *
 * POWERCUT_IGNORE=sync makes fsync and fdatasync of files do nothing at all, and
 * writes that are synced by themselves ordinary ones,
 * POWERCUT_IGNORE=directories those of directories: both exist to show that the
 * tests notice. POWERCUT_DELAY_US is the longest time a sync takes (random).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BUCKETS 4096
#define PATH_BYTES 4096

struct tracked {
    dev_t device;
    ino_t inode;
    int undo;    /* append-only */
    int content; /* the aside link, for reading old bytes */
    int unsynced; /* whether the undo log has changes that are not stable */
    pthread_mutex_t mutex;
    struct tracked *next;
};

static struct tracked *buckets[BUCKETS];
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static char data_path[PATH_BYTES];
static char aside_path[PATH_BYTES / 2];
static int ignore_sync, ignore_directories;
static unsigned delay_us_max;

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static ssize_t (*real_pwritev2)(int, const struct iovec *, int, off_t, int);
static int (*real_ftruncate)(int, off_t);
static int (*real_fallocate)(int, int, off_t, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

static void give_up(const char *what)
{
    char text[512];
    int n = snprintf(text, sizeof text, "powercut: %s: %s\n", what, strerror(errno));
    if (n > 0)
        real_write(2, text, (size_t)n);
    abort();
}

__attribute__((constructor)) static void begin(void)
{
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pwritev = dlsym(RTLD_NEXT, "pwritev64");
    real_pwritev2 = dlsym(RTLD_NEXT, "pwritev64v2");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fallocate = dlsym(RTLD_NEXT, "fallocate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    const char *data = getenv("POWERCUT_DATA");
    const char *aside = getenv("POWERCUT_ASIDE");
    const char *ignore = getenv("POWERCUT_IGNORE");
    const char *delay = getenv("POWERCUT_DELAY_US");
    if (!data || !aside || strlen(aside) >= sizeof aside_path || !realpath(data, data_path))
        give_up("POWERCUT_DATA and POWERCUT_ASIDE must name directories");
    strcpy(aside_path, aside);
    ignore_sync = ignore && strcmp(ignore, "sync") == 0;
    ignore_directories = ignore && strcmp(ignore, "directories") == 0;
    delay_us_max = delay ? (unsigned)atoi(delay) : 0;
}

static void aside_name(char *out, char kind, ino_t inode)
{
    snprintf(out, PATH_BYTES, "%s/%c%llu", aside_path, kind, (unsigned long long)inode);
}

static int is_ours(int fd)
{
    char link[64], path[PATH_BYTES];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0)
        return 0;
    path[n] = 0;
    size_t prefix = strlen(data_path);
    return strncmp(path, data_path, prefix) == 0 && (path[prefix] == '/' || path[prefix] == 0);
}

static struct tracked *lookup(const struct stat *status)
{
    struct tracked *t = buckets[status->st_ino % BUCKETS];
    while (t && (t->inode != status->st_ino || t->device != status->st_dev))
        t = t->next;
    return t;
}

static struct tracked *find(int fd)
{
    struct stat status;
    if (!data_path[0] || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return NULL;
    pthread_mutex_lock(&table_mutex);
    struct tracked *t = lookup(&status);
    pthread_mutex_unlock(&table_mutex);
    return t;
}

/* Begins to watch a file that has just been opened. */
static void track(int fd, const struct stat *status)
{
    pthread_mutex_lock(&table_mutex);
    struct tracked *t = lookup(status);
    if (!t) {
        char link[64], content[PATH_BYTES], undo[PATH_BYTES];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        aside_name(content, 'f', status->st_ino);
        aside_name(undo, 'u', status->st_ino);
        if (linkat(AT_FDCWD, link, AT_FDCWD, content, AT_SYMLINK_FOLLOW) != 0 && errno != EEXIST) {
            if (errno != ENOENT)
                give_up("cannot link a file aside");
            /* A file without a name: nothing of it is left after a cut in any case. */
            pthread_mutex_unlock(&table_mutex);
            return;
        }
        t = calloc(1, sizeof *t);
        if (!t)
            give_up("no memory");
        t->device = status->st_dev;
        t->inode = status->st_ino;
        pthread_mutex_init(&t->mutex, NULL);
        t->content = real_open(content, O_RDONLY | O_CLOEXEC);
        t->undo = real_open(undo, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        if (t->undo < 0 || t->content < 0)
            give_up("cannot open an undo log");
        /* An earlier process may have left changes that are not stable. */
        struct stat left;
        if (fstat(t->undo, &left) != 0)
            give_up("cannot see an undo log's length");
        t->unsynced = left.st_size > 0;
        t->next = buckets[t->inode % BUCKETS];
        buckets[t->inode % BUCKETS] = t;
    }
    pthread_mutex_unlock(&table_mutex);
}

static void write_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = real_write(fd, bytes, count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            give_up("cannot write aside");
        bytes += n;
        count -= (size_t)n;
    }
}

/* Saves what a change of [offset, offset + length) is about to replace. */
static void remember(struct tracked *t, uint64_t offset, uint64_t length, uint64_t kind)
{
    struct stat status;
    if (fstat(t->content, &status) != 0)
        give_up("cannot see a file's length");
    uint64_t size = (uint64_t)status.st_size;
    uint64_t end = kind == 1 ? size : offset + length;
    if (end > size)
        end = size;
    uint64_t saved = offset < end ? end - offset : 0;
    char *bytes = malloc(saved + 40);
    if (!bytes)
        give_up("no memory");
    uint64_t got = 0;
    while (got < saved) {
        ssize_t n = pread(t->content, bytes + 40 + got, saved - got, (off_t)(offset + got));
        if (n < 0)
            give_up("cannot read old bytes");
        if (n == 0)
            break;
        got += (uint64_t)n;
    }
    while (got > 0 && bytes[40 + got - 1] == 0)
        got--;
    uint64_t header[5] = {offset, length, kind, size, got};
    memcpy(bytes, header, sizeof header);
    write_all(t->undo, bytes, 40 + got);
    free(bytes);
}

static void take_time(void)
{
    static __thread unsigned seed;
    if (!delay_us_max)
        return;
    if (!seed)
        seed = (unsigned)(uintptr_t)&seed ^ (unsigned)getpid();
    usleep((useconds_t)(rand_r(&seed) % delay_us_max));
}

/* Nothing of the file can be lost any more. */
static void forget(struct tracked *t)
{
    if (real_ftruncate(t->undo, 0) != 0)
        give_up("cannot empty an undo log");
    t->unsynced = 0;
}

static int syncs_itself(int fd, int flags)
{
    int opened = fcntl(fd, F_GETFL);
    /* O_SYNC has the bit of O_DSYNC, too. */
    return (flags & (RWF_DSYNC | RWF_SYNC)) || (opened >= 0 && (opened & O_DSYNC));
}

/* After a change, whose record is there. Its first `done` bytes are stable if it was
 * synced by itself. */
static void changed(struct tracked *t, uint64_t offset, ssize_t done, int is_synced)
{
    if (!is_synced || ignore_sync || done < 0) {
        t->unsynced = 1;
        return;
    }
    take_time();
    if (!t->unsynced) {
        forget(t);
        return;
    }
    uint64_t stable[5] = {offset, (uint64_t)done, 2, 0, 0};
    write_all(t->undo, (const char *)stable, sizeof stable);
}

static void opened(int fd)
{
    struct stat status;
    int saved = errno;
    if (fd >= 0 && data_path[0] && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_ours(fd))
        track(fd, &status);
    errno = saved;
}

/* O_TRUNC is taken out of the flags and done by a watched ftruncate. */
static int open_watched(int directory, const char *path, int flags, mode_t mode)
{
    int fd;
    if (directory == AT_FDCWD)
        fd = real_open(path, flags & ~O_TRUNC, mode);
    else
        fd = real_openat(directory, path, flags & ~O_TRUNC, mode);
    opened(fd);
    if (fd >= 0 && (flags & O_TRUNC) && ftruncate(fd, 0) != 0 && errno != EINVAL) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

#define MODE(flags)                                                            \
    mode_t mode = 0;                                                           \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                     \
        va_list arguments;                                                     \
        va_start(arguments, flags);                                            \
        mode = va_arg(arguments, mode_t);                                      \
        va_end(arguments);                                                     \
    }

int open(const char *path, int flags, ...)
{
    MODE(flags)
    return open_watched(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags)
    return open_watched(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    MODE(flags)
    return open_watched(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    MODE(flags)
    return open_watched(directory, path, flags, mode);
}

static uint64_t file_end(struct tracked *t)
{
    struct stat status;
    if (fstat(t->content, &status) != 0)
        give_up("cannot see a file's length");
    return (uint64_t)status.st_size;
}

static uint64_t write_offset(int fd, struct tracked *t)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_APPEND))
        return file_end(t);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    if (offset < 0)
        give_up("cannot see a file's position");
    return (uint64_t)offset;
}

static size_t total(const struct iovec *parts, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    return bytes;
}

#define WATCHED(fd, offset_of, bytes, kind, is_synced, call)                   \
    struct tracked *t = real_write ? find(fd) : NULL;                          \
    if (!t)                                                                    \
        return call;                                                           \
    pthread_mutex_lock(&t->mutex);                                             \
    uint64_t at = (offset_of);                                                 \
    remember(t, at, bytes, kind);                                              \
    __auto_type result = call;                                                 \
    int saved = errno;                                                         \
    changed(t, at, result, is_synced);                                         \
    pthread_mutex_unlock(&t->mutex);                                           \
    errno = saved;                                                             \
    return result;

ssize_t write(int fd, const void *bytes, size_t count)
{
    if (!real_write)
        real_write = dlsym(RTLD_NEXT, "write");
    WATCHED(fd, write_offset(fd, t), count, 0, syncs_itself(fd, 0), real_write(fd, bytes, count))
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t offset)
{
    WATCHED(fd, (uint64_t)offset, count, 0, syncs_itself(fd, 0),
            real_pwrite(fd, bytes, count, offset))
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    return pwrite64(fd, bytes, count, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    WATCHED(fd, write_offset(fd, t), total(parts, count), 0, syncs_itself(fd, 0),
            real_writev(fd, parts, count))
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset)
{
    WATCHED(fd, (uint64_t)offset, total(parts, count), 0, syncs_itself(fd, 0),
            real_pwritev(fd, parts, count, offset))
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return pwritev64(fd, parts, count, offset);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    WATCHED(fd,
            flags & RWF_APPEND ? file_end(t) : offset < 0 ? write_offset(fd, t) : (uint64_t)offset,
            total(parts, count), 0, syncs_itself(fd, flags),
            real_pwritev2(fd, parts, count, offset, flags))
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    return pwritev64v2(fd, parts, count, offset, flags);
}

int ftruncate64(int fd, off_t length)
{
    WATCHED(fd, (uint64_t)length, 0, 1, 0, real_ftruncate(fd, length))
}

int ftruncate(int fd, off_t length)
{
    return ftruncate64(fd, length);
}

int fallocate64(int fd, int mode, off_t offset, off_t length)
{
    /* Reserving changes no bytes; at most it makes the file longer. */
    WATCHED(fd, (uint64_t)(offset + length), 0, 1, 0, real_fallocate(fd, mode, offset, length))
}

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    return fallocate64(fd, mode, offset, length);
}

int posix_fallocate64(int fd, off_t offset, off_t length)
{
    return fallocate64(fd, 0, offset, length) == 0 ? 0 : errno;
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    return posix_fallocate64(fd, offset, length);
}

/* The names in a directory become stable: those that were there before the call. */
static int sync_directory(int fd, const struct stat *status)
{
    char unfinished[PATH_BYTES], finished[PATH_BYTES], self[64];
    static unsigned long number;
    snprintf(unfinished, sizeof unfinished, "%s/unfinished-%lu", aside_path,
             __sync_fetch_and_add(&number, 1));
    aside_name(finished, 'd', status->st_ino);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    DIR *directory = opendir(self);
    int out = real_open(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (!directory || out < 0)
        give_up("cannot read a directory");
    for (struct dirent *entry; (entry = readdir(directory));) {
        struct stat found;
        char line[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(dirfd(directory), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0)
            continue; /* removed meanwhile */
        int n = snprintf(line, sizeof line, "%llu %c %s\n", (unsigned long long)found.st_ino,
                         S_ISDIR(found.st_mode) ? 'd' : 'f', entry->d_name);
        write_all(out, line, (size_t)n);
    }
    closedir(directory);
    close(out);
    take_time();
    if (rename(unfinished, finished) != 0)
        give_up("cannot record a directory");
    return 0;
}

static int sync_watched(int fd, int (*real)(int))
{
    struct stat status;
    if (!data_path[0] || fstat(fd, &status) != 0 || !is_ours(fd))
        return real(fd);
    if (S_ISDIR(status.st_mode))
        return ignore_directories ? 0 : sync_directory(fd, &status);
    struct tracked *t = find(fd);
    if (!t || ignore_sync)
        return 0;
    /* The bytes need not reach a real disk: nobody will cut its power. */
    pthread_mutex_lock(&t->mutex);
    take_time();
    forget(t);
    pthread_mutex_unlock(&t->mutex);
    return 0;
}

int fsync(int fd)
{
    return sync_watched(fd, real_fsync);
}

int fdatasync(int fd)
{
    return sync_watched(fd, real_fdatasync);
}
