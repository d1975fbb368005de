/* Writes a line into the file INTERPOSE_LOG before (or, for syncs, after) each call that changes a file or makes a
   change durable. Only for tests on machines without strace; see system_calls.py for the form of the lines. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);

static void tell(const char *call, const char *path, const char *other) {
    static int log = -1;
    static ssize_t (*put)(int, const void *, size_t);
    char line[3 * PATH_MAX];
    int saved = errno;
    if (log < 0) {
        int (*open_)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
        put = dlsym(RTLD_NEXT, "write");
        log = open_(getenv("INTERPOSE_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    put(log, line, snprintf(line, sizeof line, "%s\t%s\t%s\n", call, path, other));
    errno = saved;
}

static void tell_fd(const char *call, int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        tell(call, path, "");
    }
}

#define SYNC(name) \
    int name(int fd) { \
        REAL(int, #name, int) \
        int result = real(fd); \
        if (!result) tell_fd("sync", fd); \
        return result; \
    }
SYNC(fsync)
SYNC(fdatasync)

#define WRITE_ALL(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off64_t at) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, off64_t) \
        tell_fd("write", fd); \
        return real(fd, parts, count, at); \
    }
WRITE_ALL(pwritev)
WRITE_ALL(pwritev64)

#define WRITE_AT(name) \
    ssize_t name(int fd, const void *bytes, size_t length, off64_t at) { \
        REAL(ssize_t, #name, int, const void *, size_t, off64_t) \
        tell_fd("write", fd); \
        return real(fd, bytes, length, at); \
    }
WRITE_AT(pwrite)
WRITE_AT(pwrite64)

ssize_t write(int fd, const void *bytes, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t)
    tell_fd("write", fd);
    return real(fd, bytes, length);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        REAL(int, #name, const char *, int, ...) \
        int fd = real(path, flags, mode); \
        if (fd >= 0 && (flags & O_CREAT) && (flags & O_EXCL)) tell("create", path, ""); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

#define PAIR(name, call) \
    int name(const char *from, const char *to) { \
        REAL(int, #name, const char *, const char *) \
        int result = real(from, to); \
        if (!result) tell(call, from, to); \
        return result; \
    }
PAIR(rename, "rename")
PAIR(link, "link")

int renameat(int from_at, const char *from, int to_at, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *)
    int result = real(from_at, from, to_at, to);
    if (!result) tell("rename", from, to);
    return result;
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int)
    int result = real(from_at, from, to_at, to, flags);
    if (!result) tell("link", from, to);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t)
    int result = real(path, mode);
    if (!result) tell("create", path, "");
    return result;
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *)
    tell("unlink", path, "");
    return real(path);
}

int unlinkat(int at, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int)
    tell("unlink", path, "");
    return real(at, path, flags);
}

int access(const char *path, int mode) {
    REAL(int, "access", const char *, int)
    tell("mark", path, "");
    return real(path, mode);
}
