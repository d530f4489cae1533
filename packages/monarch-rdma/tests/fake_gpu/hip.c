// AMD's driver for machines that have none: libamdhip64 and libhsa-runtime64 in one, over the one beside this file.
//
// There is no context to push: a thread has a device, the first one before it says otherwise.

#include "driver.c"

static __thread int chosen;

// The calls below want a context: that of the device of this thread.
#define ON_DEVICE(call) (contexts[depth++] = chosen, after(call))
static int after(int error) { depth--; return error; }

int hipInit(unsigned flags) { return cuInit(flags); }
const char *hipGetErrorName(int code) { return code == NO_DEVICE ? "hipErrorNoDevice" : "hipErrorInvalidValue"; }
int hipGetDeviceCount(int *n) { return cuDeviceGetCount(n); }
int hipDeviceGet(int *device, int n) { return cuDeviceGet(device, n); }
int hipDeviceGetUuid(char *uuid, int device) {
    if (getenv("MONARCH_FAKE_NO_UUID")) return memset(uuid, 0, 16), OK;
    return cuDeviceGetUuid(uuid, device);
}
int hipGetDevice(int *device) { *device = chosen; return OK; }
int hipSetDevice(int device) {
    if (device < 0 || device >= devices()) return INVALID_VALUE;
    chosen = device;
    return OK;
}
int hipDeviceSynchronize(void) { return ON_DEVICE(cuCtxSynchronize()); }
int hipStreamCreateWithFlags(struct stream **stream, unsigned flags) { return ON_DEVICE(cuStreamCreate(stream, flags)); }
int hipStreamSynchronize(struct stream *stream) { return cuStreamSynchronize(stream); }
int hipHostMalloc(void **address, size_t nbytes, unsigned flags) { return ON_DEVICE(cuMemHostAlloc(address, nbytes, flags)); }
int hipMalloc(ptr *out, size_t nbytes) { return ON_DEVICE(cuMemAlloc_v2(out, nbytes)); }
int hipMemGetAddressRange(ptr *base, size_t *nbytes, ptr p) { return ON_DEVICE(cuMemGetAddressRange_v2(base, nbytes, p)); }
int hipMemcpyDtoDAsync(ptr to, ptr from, size_t n, struct stream *s) { return ON_DEVICE(cuMemcpyDtoDAsync_v2(to, from, n, s)); }
int hipMemcpyDtoHAsync(void *to, ptr from, size_t n, struct stream *s) { return ON_DEVICE(cuMemcpyDtoHAsync_v2(to, from, n, s)); }
int hipMemcpyHtoDAsync(ptr to, const void *from, size_t n, struct stream *s) { return ON_DEVICE(cuMemcpyHtoDAsync_v2(to, from, n, s)); }
int hipIpcGetMemHandle(struct handle *out, ptr p) { return cuIpcGetMemHandle(out, p); }
int hipIpcOpenMemHandle(ptr *out, struct handle handle, unsigned flags) { return ON_DEVICE(cuIpcOpenMemHandle_v2(out, handle, flags)); }
int hipIpcCloseMemHandle(ptr p) { return ON_DEVICE(cuIpcCloseMemHandle(p)); }

static int hsa_started;
int hsa_init(void) { hsa_started++; return 0; }

// Of the whole allocation, whatever the range.
int hsa_amd_portable_export_dmabuf(ptr p, size_t nbytes, int *out, uint64_t *offset) {
    if (!hsa_started) return 0x100B;
    if (getenv("MONARCH_FAKE_NO_DMA")) return 0x1000;
    pthread_mutex_lock(&lock);
    struct allocation *a = find(p, 0);
    int error = a && p + nbytes <= (ptr)a->base + (a->nbytes + 4095) / 4096 * 4096 ? 0 : 0x1001;
    if (!error) {
        char file[256];
        path(file, sizeof file, a->name);
        *out = open(file, O_RDWR | O_CLOEXEC);
        *offset = p - (ptr)a->base;
    }
    pthread_mutex_unlock(&lock);
    return error;
}
