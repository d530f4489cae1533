/* Stands between pyfuse3 and libfuse: it is loaded with global symbols before pyfuse3, which then calls these functions instead of libfuse's.
 *
 * - The handle of a read or a listing is the inode: the kernel sends handle 0 for files that it opened without a request.
 * - The negotiation of the connection: read-ahead, cached symbolic links, parallel directory operations, no splice for small requests.
 * - Requests are counted by opcode, those that libfuse answers itself included. IOCTL is answered here, without Python.
 * - INTERRUPT goes to a callback with the identity of the interrupted request. libfuse could only note it.
 * - Programs built with libfuse 3.17 and later make the session by a function that gets the version of the headers too; its name has changed
 *   since. All of the names are here: a program calls one of them, and libfuse has that one.
 * - A connection that another process has initialised is resumed: libfuse gets a made-up INIT, the kernel is asked to send again. */
#define FUSE_USE_VERSION 314
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define OPCODES 64
#define NOTIFY_RESEND 7 /* Linux 6.9 */
#define STASH (4 << 20)

uint64_t monarch_fs_counts[OPCODES];
uint64_t monarch_fs_request; /* identity of the request that is processed, and the thread that made it; flags of the file of a read */
uint32_t monarch_fs_thread;
uint32_t monarch_fs_flags;
uint32_t monarch_fs_read_ahead;
uint32_t monarch_fs_background;
uint32_t monarch_fs_immutable;
void (*monarch_fs_interrupted)(uint64_t);

static struct fuse_lowlevel_ops real;
static struct fuse_session *session;
static void *stash;
static ssize_t stashed;

static void *original(const char *name) {
    static void *library;
    if (!library) {
        Dl_info info;
        if (!dladdr((void *)fuse_session_fd, &info) || !(library = dlopen(info.dli_fname, RTLD_LAZY))) abort();
    }
    void *found = dlsym(library, name);
    /* Newer libraries keep an older function for programs that were built with it: as a version that is not the default. */
    return found ? found : dlvsym(library, name, "FUSE_3.0");
}
static void on_read(fuse_req_t r, fuse_ino_t i, size_t n, off_t o, struct fuse_file_info *f) {
    struct fuse_file_info g = *f;
    g.fh = i;
    real.read(r, i, n, o, &g);
}
static void on_readdirplus(fuse_req_t r, fuse_ino_t i, size_t n, off_t o, struct fuse_file_info *f) {
    struct fuse_file_info g = *f;
    g.fh = i;
    real.readdirplus(r, i, n, o, &g);
}
static void on_init(void *user, struct fuse_conn_info *c) {
    real.init(user, c);
    c->want |= c->capable & (FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_ASYNC_READ);
    /* Asynchronous direct reads cannot be interrupted. */
    c->want &= ~(FUSE_CAP_SPLICE_READ | FUSE_CAP_ASYNC_DIO);
    if (monarch_fs_immutable) c->want &= ~FUSE_CAP_AUTO_INVAL_DATA;
    if (monarch_fs_read_ahead) c->max_readahead = monarch_fs_read_ahead;
    if (monarch_fs_background) c->max_background = monarch_fs_background;
}
static struct fuse_lowlevel_ops replaced(const struct fuse_lowlevel_ops *op, size_t n) {
    struct fuse_lowlevel_ops mine;
    memcpy(&real, op, n < sizeof real ? n : sizeof real);
    mine = real;
    mine.read = on_read;
    mine.readdirplus = on_readdirplus;
    mine.init = on_init;
    return mine;
}
/* Names of their own in C: newer headers have macros and other declarations for these symbols. */
struct fuse_session *session_new(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *) __asm__("fuse_session_new");
struct fuse_session *session_new(struct fuse_args *a, const struct fuse_lowlevel_ops *op, size_t n, void *user) {
    struct fuse_session *(*next)(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *) = original("fuse_session_new");
    struct fuse_lowlevel_ops mine = replaced(op, n);
    if (!next) return NULL;
    return session = next(a, &mine, sizeof mine, user);
}
#define VERSIONED(name, symbol) \
    struct fuse_session *name(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *, void *) __asm__(symbol); \
    struct fuse_session *name(struct fuse_args *a, const struct fuse_lowlevel_ops *op, size_t n, void *version, void *user) { \
        struct fuse_session *(*next)(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *, void *) = original(symbol); \
        struct fuse_lowlevel_ops mine = replaced(op, n); \
        if (!next) return NULL; \
        return session = next(a, &mine, sizeof mine, version, user); \
    }
VERSIONED(session_new_versioned, "fuse_session_new_versioned")
VERSIONED(session_new_317, "_fuse_session_new_317")
static void answer(int fd, uint64_t unique, int error) {
    struct fuse_out_header out = {sizeof out, error, unique};
    /* A request that was aborted meanwhile has no answer. */
    if (write(fd, &out, sizeof out) < 0) return;
}
int fuse_session_receive_buf(struct fuse_session *se, struct fuse_buf *buf) {
    static int (*next)(struct fuse_session *, struct fuse_buf *);
    if (!next) next = original("fuse_session_receive_buf");
    for (;;) {
        int got;
        if (stashed) {
            if (!buf->mem && !(buf->mem = malloc(STASH))) return -ENOMEM;
            memcpy(buf->mem, stash, stashed);
            buf->size = got = stashed;
            buf->flags = 0;
            stashed = 0;
            free(stash);
            stash = NULL;
        } else {
            got = next(se, buf);
            /* The descriptor does not block: the request that poll() announced can be aborted before it is read. */
            if (got == -EAGAIN) return -EINTR;
        }
        if (got < (int)sizeof(struct fuse_in_header)) return got;
        struct fuse_in_header *in = buf->mem;
        if (in->opcode < OPCODES) monarch_fs_counts[in->opcode]++;
        if (in->opcode != FUSE_IOCTL) return got;
        answer(fuse_session_fd(se), in->unique, -ENOTTY);
    }
}
void fuse_session_process_buf(struct fuse_session *se, const struct fuse_buf *buf) {
    static void (*next)(struct fuse_session *, const struct fuse_buf *);
    if (!next) next = original("fuse_session_process_buf");
    struct fuse_in_header *in = buf->mem;
    if (!(buf->flags & FUSE_BUF_IS_FD)) {
        monarch_fs_request = in->unique;
        monarch_fs_thread = in->pid;
        monarch_fs_flags = in->opcode == FUSE_READ ? ((struct fuse_read_in *)(in + 1))->flags : 0;
        if (in->opcode == FUSE_INTERRUPT && monarch_fs_interrupted) {
            monarch_fs_interrupted(((struct fuse_interrupt_in *)(in + 1))->unique);
            return;
        }
    }
    next(se, buf);
}
int monarch_fs_in_front(void) { return session != NULL; }
/* 0: resumed; 1: a request is stashed, receive it before any wait; -errno. The session has been made, nothing of it has been received. */
int monarch_fs_resume(void) {
    struct fuse_out_header again = {sizeof again, NOTIFY_RESEND, 0};
    int fd = fuse_session_fd(session);
    if (write(fd, &again, sizeof again) != sizeof again) return -errno;
    if (!(stash = malloc(STASH))) return -ENOMEM;
    while ((stashed = read(fd, stash, STASH)) < 0 && (errno == EINTR || errno == ENOENT)) {}
    if (stashed < 0) {
        stashed = 0;
        if (errno != EAGAIN) return -errno;
    }
    /* The earlier server ended before it answered INIT: it is the first request then, and no other comes before its answer. */
    if (stashed && ((struct fuse_in_header *)stash)->opcode == FUSE_INIT) return 1;
    struct { struct fuse_in_header header; struct fuse_init_in init; } made;
    memset(&made, 0, sizeof made);
    made.header.len = sizeof made;
    made.header.opcode = FUSE_INIT;
    made.header.unique = 1ULL << 61;
    made.init.major = 7;
    made.init.minor = 36;
    made.init.max_readahead = 1 << 20;
    made.init.flags = ~(1u << 30); /* without FUSE_INIT_EXT: flags2 is not there */
    struct fuse_buf buf;
    memset(&buf, 0, sizeof buf);
    buf.mem = &made;
    buf.size = sizeof made;
    fuse_session_process_buf(session, &buf);
    return stashed > 0;
}
