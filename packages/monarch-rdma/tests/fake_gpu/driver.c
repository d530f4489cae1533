// A driver for machines that have none: as much of libcuda.so.1 as `monarch.rdma` uses, over files that stand for allocations of a device.
//
// Strict where the real one is vague: a call without a context, a pointer that is not of a device, or a range that leaves its allocation is
// an error. Copies on a stream happen when the stream is waited for, so what was not waited for is missing. MONARCH_FAKE_GPU is a folder
// for the files; MONARCH_FAKE_GPUS how many devices there are, 2 without it.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <pthread.h>

typedef uint64_t ptr;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_CONTEXT = 201, NOT_SUPPORTED = 801 };
enum { MOST = 4096, DEPTH = 16 };

struct allocation { char *base; size_t nbytes; int own, exported, device, uses; char name[48]; };
struct copy { char *to; const char *from; size_t nbytes; struct copy *next; };
struct stream { struct copy *first, *last; };
struct handle { char reserved[64]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation all[MOST];
static int initialized, made;
static __thread int contexts[DEPTH], depth;

static int devices(void) { const char *n = getenv("MONARCH_FAKE_GPUS"); return n ? atoi(n) : 2; }
static int current(void) { return depth ? contexts[depth - 1] : -1; }
static void path(char *out, size_t n, const char *name) { snprintf(out, n, "%s/%s", getenv("MONARCH_FAKE_GPU"), name); }

static struct allocation *find(ptr p, size_t nbytes) {
    for (int i = 0; i < MOST; i++)
        if (all[i].base && p >= (ptr)all[i].base && p < (ptr)all[i].base + all[i].nbytes)
            return p + nbytes <= (ptr)all[i].base + all[i].nbytes ? &all[i] : NULL;
    return NULL;
}

static int add(const char *name, size_t nbytes, int own, int device, ptr *out) {
    char file[256];
    path(file, sizeof file, name);
    int fd = open(file, own ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    if (fd < 0 || (own && ftruncate(fd, nbytes))) return INVALID_VALUE;
    struct stat seen;
    fstat(fd, &seen);
    char *base = mmap(NULL, seen.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED) return OUT_OF_MEMORY;
    for (int i = 0; i < MOST; i++)
        if (!all[i].base) {
            all[i] = (struct allocation){base, seen.st_size, own, 0, device, 1, ""};
            snprintf(all[i].name, sizeof all[i].name, "%s", name);
            *out = (ptr)base;
            return OK;
        }
    return OUT_OF_MEMORY;
}

int cuInit(unsigned flags) { initialized = 1; return devices() ? OK : NO_DEVICE; }

int cuGetErrorName(int code, const char **name) {
    *name = code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}

int cuDeviceGetCount(int *n) { *n = devices(); return initialized ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int n) { *device = n; return n >= 0 && n < devices() ? OK : INVALID_VALUE; }
// In the order that CUDA_VISIBLE_DEVICES would give them: MONARCH_FAKE_FIRST is the device that is shown first.
static int real(int device) { const char *first = getenv("MONARCH_FAKE_FIRST"); return device + (first ? atoi(first) : 0); }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0x40 + real(device), 16); return OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(device + 1); return OK; }

int cuCtxPushCurrent_v2(void *context) {
    if (depth == DEPTH) return INVALID_CONTEXT;
    contexts[depth++] = (int)(intptr_t)context - 1;
    return OK;
}

int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = (void *)(intptr_t)(contexts[--depth] + 1);
    return OK;
}

int cuCtxSynchronize(void) { return current() < 0 ? INVALID_CONTEXT : OK; }

int cuStreamCreate(struct stream **stream, unsigned flags) {
    if (current() < 0) return INVALID_CONTEXT;
    *stream = calloc(1, sizeof **stream);
    return OK;
}

int cuStreamSynchronize(struct stream *stream) {
    for (struct copy *c = stream->first, *next; c; c = next) {
        memcpy(c->to, c->from, c->nbytes);
        next = c->next;
        free(c);
    }
    stream->first = stream->last = NULL;
    return OK;
}

int cuMemHostAlloc(void **address, size_t nbytes, unsigned flags) {
    *address = malloc(nbytes);
    return current() < 0 ? INVALID_CONTEXT : OK;
}

static int queue(void *to, const void *from, size_t nbytes, struct stream *stream) {
    struct copy *c = malloc(sizeof *c);
    *c = (struct copy){to, from, nbytes, NULL};
    if (stream->last) stream->last->next = c; else stream->first = c;
    stream->last = c;
    return OK;
}

static int check(ptr p, size_t nbytes, int on_device) {
    if (current() < 0) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct allocation *a = find(p, nbytes);
    pthread_mutex_unlock(&lock);
    return on_device == (a != NULL) ? OK : INVALID_VALUE;
}

static int copy(ptr to, int to_device, ptr from, int from_device, size_t nbytes, struct stream *stream) {
    int error = check(to, nbytes, to_device);
    error = error ? error : check(from, nbytes, from_device);
    return error ? error : queue((void *)to, (void *)from, nbytes, stream);
}

int cuMemcpyDtoDAsync_v2(ptr to, ptr from, size_t n, struct stream *s) { return copy(to, 1, from, 1, n, s); }
int cuMemcpyDtoHAsync_v2(void *to, ptr from, size_t n, struct stream *s) { return copy((ptr)to, 0, from, 1, n, s); }
int cuMemcpyHtoDAsync_v2(ptr to, const void *from, size_t n, struct stream *s) { return copy(to, 1, (ptr)from, 0, n, s); }

int cuMemAlloc_v2(ptr *out, size_t nbytes) {
    if (current() < 0) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    char name[48];
    snprintf(name, sizeof name, "%d-%d", getpid(), made++);
    int error = add(name, nbytes, 1, current(), out);
    pthread_mutex_unlock(&lock);
    return error;
}

int cuMemFree_v2(ptr p) {
    pthread_mutex_lock(&lock);
    struct allocation *a = find(p, 0);
    int error = a && a->own && (ptr)a->base == p ? OK : INVALID_VALUE;
    if (!error) {
        char file[256];
        path(file, sizeof file, a->name);
        unlink(file);
        munmap(a->base, a->nbytes);
        a->base = NULL;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int cuMemGetAddressRange_v2(ptr *base, size_t *nbytes, ptr p) {
    if (current() < 0) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct allocation *a = find(p, 0);
    if (a) *base = (ptr)a->base, *nbytes = a->nbytes;
    pthread_mutex_unlock(&lock);
    return a ? OK : INVALID_VALUE;
}

// A descriptor of the file, whose position says where in it the range begins.
int cuMemGetHandleForAddressRange(int *out, ptr p, size_t nbytes, int type, unsigned long long flags) {
    if (current() < 0) return INVALID_CONTEXT;
    if (p % 4096 || nbytes % 4096 || type != 1 || flags) return INVALID_VALUE;
    if (getenv("MONARCH_FAKE_NO_DMA")) return NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    struct allocation *a = find(p, 0);
    int error = a && p + nbytes <= (ptr)a->base + (a->nbytes + 4095) / 4096 * 4096 ? OK : INVALID_VALUE;
    if (!error) {
        char file[256];
        path(file, sizeof file, a->name);
        *out = open(file, O_RDWR | O_CLOEXEC);
        lseek(*out, p - (ptr)a->base, SEEK_SET);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int cuIpcGetMemHandle(struct handle *out, ptr p) {
    pthread_mutex_lock(&lock);
    struct allocation *a = find(p, 0);
    // As for memory that was not made by cuMemAlloc.
    int error = a && a->own && (ptr)a->base == p && !getenv("MONARCH_FAKE_NO_EXPORT") ? OK : INVALID_VALUE;
    memset(out, 0, sizeof *out);
    if (!error) snprintf(out->reserved, sizeof out->reserved, "%s", a->name);
    pthread_mutex_unlock(&lock);
    return error;
}

int cuIpcOpenMemHandle_v2(ptr *out, struct handle handle, unsigned flags) {
    if (current() < 0) return INVALID_CONTEXT;
    if (flags != 1) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int error = OK;
    for (int i = 0; i < MOST; i++)
        // The process that made it cannot open it, and nobody twice at the same time: the caller is to count.
        if (all[i].base && !strcmp(all[i].name, handle.reserved)) error = INVALID_CONTEXT;
    if (!error) error = add(handle.reserved, 0, 0, current(), out);
    pthread_mutex_unlock(&lock);
    return error;
}

int cuIpcCloseMemHandle(ptr p) {
    if (current() < 0) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct allocation *a = find(p, 0);
    int error = a && !a->own && (ptr)a->base == p ? OK : INVALID_VALUE;
    if (!error) munmap(a->base, a->nbytes), a->base = NULL;
    pthread_mutex_unlock(&lock);
    return error;
}
