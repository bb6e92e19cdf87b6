/* Log every call of a program to the CUDA driver, with the library that makes it.
 *
 *   cc -O2 -shared -fPIC -o driver_trace.so tools/driver_trace.c -ldl
 *   DRIVER_TRACE=trace.txt LD_PRELOAD=./driver_trace.so program
 *
 * cuDNN and the CUDA runtime look up the driver's functions with dlsym and cuGetProcAddress. This library replaces
 * dlsym, and returns wrappers that call the driver's function and write a line: the calling library, the function,
 * its arguments, the result, and the output if it is a number:
 *
 *   libcudnn_graph.so.9 cuDeviceGetAttribute(0x7ffd.., 16, 0) = 0 -> 132
 *
 * Each wrapper passes twelve integers: the driver functions that cuDNN and the runtime call have no more arguments,
 * and none in floating point.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THUNKS 2048
typedef uint64_t U;
typedef U (*Function)(U, U, U, U, U, U, U, U, U, U, U, U);

static struct entry {
    Function real;
    const char *name;
} entries[THUNKS];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int out = -2;
static __thread int inside;

static void *wrap(const char *name, void *real);

static void say(const char *text, size_t length) {
    if (out == -2) {
        const char *path = getenv("DRIVER_TRACE");
        out = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    }
    if (out >= 0 && write(out, text, length) < 0) out = -1;
}

/* CUlaunchConfig and CUlaunchAttribute of cuda.h 12 */
struct attribute {
    int id;
    char pad[4];
    union {
        int number[16];
    } value;
};
struct config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct attribute *attributes;
    unsigned count;
};

static int show_config(char *text, size_t size, const struct config *c) {
    int at = snprintf(text, size, " config grid %u,%u,%u block %u,%u,%u shared %u", c->grid[0], c->grid[1], c->grid[2],
                      c->block[0], c->block[1], c->block[2], c->shared);
    for (unsigned i = 0; c->attributes && i < c->count && i < 8; i++)
        at += snprintf(text + at, size - at, " attribute %d: %d,%d,%d", c->attributes[i].id,
                       c->attributes[i].value.number[0], c->attributes[i].value.number[1],
                       c->attributes[i].value.number[2]);
    return at;
}

static int starts(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

static const char *library_of(const void *address) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return "unknown";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static U call(const void *from, int index, U a, U b, U c, U d, U e, U f, U g, U h, U i, U j, U k, U l) {
    struct entry *one = &entries[index];
    U status = one->real(a, b, c, d, e, f, g, h, i, j, k, l);
    if (inside) return status;
    inside = 1;
    char text[1024];
    const char *name = one->name;
    int at = snprintf(text, sizeof text, "%s %s(", library_of(from), name);
    int is_address = starts(name, "cuGetProcAddress");
    if (is_address || starts(name, "cuLibraryGetKernel") || starts(name, "cuModuleGetFunction")) {
        U named = is_address ? a : c;
        at += snprintf(text + at, sizeof text - at, "%.300s, %#lx, %#lx)", (const char *)named, a, b);
    } else if (starts(name, "cuGetExportTable")) {
        at += snprintf(text + at, sizeof text - at, "%016lx%016lx)", ((U *)b)[0], ((U *)b)[1]);
    } else {
        at += snprintf(text + at, sizeof text - at, "%#lx, %ld, %ld, %ld, %ld)", a, (long)b, (long)c, (long)d, (long)e);
    }
    at += snprintf(text + at, sizeof text - at, " = %d", (int)status);
    if (status == 0 && a) {
        if (is_address && b) {
            void **found = (void **)b;
            if (*found) *found = wrap((const char *)a, *found);
        } else if (strstr(name, "GetAttribute") || strstr(name, "MaxActive") || strstr(name, "MaxPotentialCluster") ||
                   strstr(name, "GetCount") || strstr(name, "GetVersion") || strcmp(name, "cuDeviceGet") == 0) {
            at += snprintf(text + at, sizeof text - at, " -> %d", *(int *)a);
        } else if (strstr(name, "GetLimit") || strstr(name, "AvailableDynamic") || strstr(name, "TotalMem") ||
                   strstr(name, "GetKernel") || strstr(name, "GetFunction") || strstr(name, "LoadData")) {
            at += snprintf(text + at, sizeof text - at, " -> %#lx", *(U *)a);
        }
    }
    if ((strstr(name, "MaxActiveClusters") || strstr(name, "MaxPotentialCluster")) && c)
        at += show_config(text + at, sizeof text - at, (const struct config *)c);
    if (starts(name, "cuLaunchKernelEx") && a) at += show_config(text + at, sizeof text - at, (const struct config *)a);
    text[at++] = '\n';
    say(text, at);
    inside = 0;
    return status;
}

#define P U a, U b, U c, U d, U e, U f, U g, U h, U i, U j, U k, U l
#define T1(n) static U thunk_##n(P) { return call(__builtin_return_address(0), 0x##n, a, b, c, d, e, f, g, h, i, j, k, l); }
#define T16(n) \
    T1(n##0) T1(n##1) T1(n##2) T1(n##3) T1(n##4) T1(n##5) T1(n##6) T1(n##7) \
    T1(n##8) T1(n##9) T1(n##a) T1(n##b) T1(n##c) T1(n##d) T1(n##e) T1(n##f)
#define T256(n) \
    T16(n##0) T16(n##1) T16(n##2) T16(n##3) T16(n##4) T16(n##5) T16(n##6) T16(n##7) \
    T16(n##8) T16(n##9) T16(n##a) T16(n##b) T16(n##c) T16(n##d) T16(n##e) T16(n##f)
T256(0) T256(1) T256(2) T256(3) T256(4) T256(5) T256(6) T256(7)
#undef T1
#define T1(n) thunk_##n,
static Function thunks[THUNKS] = {T256(0) T256(1) T256(2) T256(3) T256(4) T256(5) T256(6) T256(7)};

static void *wrap(const char *name, void *real) {
    int index = 0;
    pthread_mutex_lock(&lock);
    while (index < used && (void *)entries[index].real != real && (void *)thunks[index] != real) index++;
    if (index == used && used < THUNKS) entries[used++] = (struct entry){(Function)real, strdup(name)};
    pthread_mutex_unlock(&lock);
    return index < THUNKS ? (void *)thunks[index] : real;
}

void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (real == NULL) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
        return real(handle, name); /* a tail call, because RTLD_NEXT depends on the calling library */
    void *found = real(handle, name);
    Dl_info info;
    if (found == NULL || !dladdr(found, &info) || !info.dli_fname || strstr(info.dli_fname, "libcuda.so") == NULL)
        return found;
    return wrap(name, found);
}
