/* What every call of a bound plan does, in one function: read the buffers, check them, fill a variant pack, execute.
 *
 * fast_call.py loads it with ctypes.PyDLL and fills the structures. It includes no header of Python, of cuDNN or of a
 * framework: their functions come in as pointers, and buffers are read through DLPack's C exchange functions.
 * Whatever is not as expected is answered, not judged: Python looks closer then, and says what is wrong.
 */
#define _POSIX_C_SOURCE 199309L
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Of these structures and functions; fast_call.py takes no other. */
const int cudnn_backend_py_fast_call_version = 2;

#define LOOK_CLOSER (-1)
#define OTHER_STREAM (-2)

#define DL_CUDA 2

struct dl_tensor { /* DLTensor of DLPack 1 */
    void *data;
    int32_t device_kind, device;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *dims, *strides;
    uint64_t byte_offset;
};

struct wanted { /* what a tensor of the graph needs of a buffer */
    int64_t bytes;       /* from the first to the last element */
    uint64_t misaligned; /* bits of an address that must be 0 */
    int32_t bits;        /* of an element; 0 for any type */
    uint32_t codes;      /* DLPack's type codes that will do, as bits; all from 31 on share the last bit */
};

struct python {
    void *(*item)(void *tuple, intptr_t index);         /* PyTuple_GetItem: borrowed */
    void *(*type)(void *object);                        /* PyObject_Type: a reference of ours */
    void (*release)(void *object);                      /* Py_DecRef */
    void (*clear)(void);                                /* PyErr_Clear */
    void *(*save)(void);                                /* PyEval_SaveThread */
    void (*restore)(void *state);                       /* PyEval_RestoreThread */
    void *(*call)(void *callable, const char *how, ...); /* PyObject_CallFunction */
};

struct pack { /* a variant pack and how to fill it */
    int (*initialize)(void *descriptor);
    int (*set)(void *descriptor, int name, int type, int64_t count, const void *values);
    int (*finalize)(void *descriptor);
    int uids_name, pointers_name, workspace_name, int64_type, pointer_type;
    int count; /* of uids */
    const int64_t *uids;
};

struct handle { /* a thread's handle, the stream it was last given, the CUDA context it was made in */
    void *handle, *stream, *context;
    int (*get_current)(void **context); /* cuCtxGetCurrent; NULL: whatever is current will do */
    int (*push)(void *context);         /* cuCtxPushCurrent */
    int (*pop)(void **context);         /* cuCtxPopCurrent */
};

struct run { /* a launch */
    int (*execute)(void *handle, void *plan, void *pack);
    int (*set_stream)(void *handle, void *stream);
    struct handle *handle;
    void *stream, *plan, *pack;
    const struct python *python;
    void *fail;     /* callable that raises for the function that failed and its status */
    int32_t failed; /* the function that refused: 0 initialize, 1 set, 2 finalize, 3 execute, 4 set_stream */
};

struct call {
    struct run run;
    const struct pack *pack;
    const struct wanted *wanted; /* one per buffer; NULL: no checks */
    uint64_t *row;               /* an address per uid, buffers first */
    void *type;                  /* of the buffers */
    int (*read)(void *object, struct dl_tensor *out);
    int (*current_stream)(int32_t device_kind, int32_t device, void **out); /* NULL: do not ask */
    void *workspace;
    int32_t device, given;
    int32_t filled; /* whether the pack holds the row */
};

/* Fill a variant pack with a row of addresses; return a status, and which function answered it. */
int cudnn_backend_py_fill(const struct pack *p, void *to, const uint64_t *row, void *workspace, int *failed) {
    int status;
    *failed = 0;
    if ((status = p->initialize(to)) != 0) return status;
    *failed = 1;
    if ((status = p->set(to, p->uids_name, p->int64_type, p->count, p->uids)) != 0) return status;
    if ((status = p->set(to, p->pointers_name, p->pointer_type, p->count, row)) != 0) return status;
    if (workspace != NULL && (status = p->set(to, p->workspace_name, p->pointer_type, 1, &workspace)) != 0) return status;
    *failed = 2;
    return p->finalize(to);
}

static int launch(struct run *r) {
    int status;
    void *state;
    if (r->handle->stream != r->stream) {
        r->failed = 4;
        if ((status = r->set_stream(r->handle->handle, r->stream)) != 0) return status;
        r->handle->stream = r->stream;
    }
    r->failed = 3;
    state = r->python->save();
    status = r->execute(r->handle->handle, r->plan, r->pack);
    r->python->restore(state);
    return status;
}

static int execute(struct run *r) {
    const struct handle *h = r->handle;
    void *current = NULL;
    int status;
    if (h->get_current == NULL || (h->get_current(&current) == 0 && current == h->context)) return launch(r);
    if (h->push(h->context) != 0) return launch(r); /* cuDNN will say what is wrong */
    status = launch(r);
    h->pop(&current);
    return status;
}

/* Launch what is bound; a status other than success becomes an exception. */
void cudnn_backend_py_launch(struct run *r) {
    const int status = execute(r);
    if (status != 0) {
        void *answer = r->python->call(r->fail, "ii", r->failed, status);
        if (answer != NULL) r->python->release(answer);
    }
}

static int fits(const struct wanted *w, const struct dl_tensor *t, uint64_t place) {
    const int64_t bits = (int64_t)t->bits * t->lanes;
    int64_t elements = 1; /* from the first to the last one */
    if (place & w->misaligned) return 0;
    if (w->bits != 0 && (bits != w->bits || !(w->codes >> (t->code < 31 ? t->code : 31) & 1))) return 0;
    for (int32_t axis = 0; axis < t->rank; ++axis) {
        if (t->dims[axis] == 0) return w->bytes == 0;
        if (t->strides == NULL)
            elements *= t->dims[axis];
        else
            elements += (t->dims[axis] - 1) * t->strides[axis];
    }
    return elements * bits / 8 >= w->bytes;
}

/* Launch with a tuple of buffers; return 0, a status of cuDNN, LOOK_CLOSER or OTHER_STREAM. Called with Python's lock. */
int cudnn_backend_py_call(struct call *c, void *buffers) {
    const struct python *python = c->run.python;
    if (c->current_stream != NULL) {
        void *stream = NULL;
        if (c->current_stream(DL_CUDA, c->device, &stream) != 0) {
            python->clear();
            return LOOK_CLOSER;
        }
        if (stream != c->run.stream) return OTHER_STREAM;
    }
    for (int32_t index = 0; index < c->given; ++index) {
        struct dl_tensor tensor;
        void *object = python->item(buffers, index);
        void *type = python->type(object);
        uint64_t place;
        python->release(type);
        if (type != c->type) return LOOK_CLOSER;
        if (c->read(object, &tensor) != 0) {
            python->clear();
            return LOOK_CLOSER;
        }
        place = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
        if (tensor.device_kind != DL_CUDA || tensor.device != c->device || place == 0) return LOOK_CLOSER;
        if (c->wanted != NULL && !fits(&c->wanted[index], &tensor, place)) return LOOK_CLOSER;
        if (c->row[index] != place) {
            c->row[index] = place;
            c->filled = 0;
        }
    }
    if (!c->filled) {
        const int status = cudnn_backend_py_fill(c->pack, c->run.pack, c->row, c->workspace, &c->run.failed);
        if (status != 0) return status;
        c->filled = 1;
    }
    return execute(&c->run);
}

/* The floor of a call, to measure by: execute over and over; return nanoseconds, or minus the first status not 0. */
int64_t cudnn_backend_py_loop(int (*run)(void *, void *, void *), void *handle, void *plan, void *pack, int64_t calls) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int64_t index = 0; index < calls; ++index) {
        const int status = run(handle, plan, pack);
        if (status != 0) return -(int64_t)status;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (int64_t)(end.tv_sec - start.tv_sec) * 1000000000 + (end.tv_nsec - start.tv_nsec);
}
