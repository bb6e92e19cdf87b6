/* What every call of a bound plan does, in one function: read the buffers, check them, fill a variant pack, execute.
 *
 * fast_call.py loads it with ctypes.PyDLL, fills the structures, and makes builtin functions of Python of what has a `self`.
 * It includes no header of Python, of cuDNN or of a framework: their functions come in as pointers, and buffers are read
 * through DLPack's C exchange functions.
 * Whatever is not as expected is answered, not judged: Python looks closer then, and says what is wrong.
 */
#define _POSIX_C_SOURCE 199309L
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fast_call.h"

const int cudnn_backend_py_fast_call_version = CUDNN_BACKEND_PY_FAST_CALL_VERSION;

const struct python *python;

void cudnn_backend_py_connect(const struct python *functions) { python = functions; }

#define LOOK_CLOSER (-1)
#define OTHER_STREAM (-2)

#define DL_CPU 1
#define DL_CUDA 2
#define MOST_GIVEN 256

/* A status, or that an exception waits to be raised, which goes first. */
static int or_raised(int status) { return cudnn_backend_py_has_kept() ? CUDNN_BACKEND_PY_RAISED : status; }

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
    return or_raised(p->finalize(to));
}

static int launch(struct run *r) {
    int status;
    if (r->handle->stream != r->stream) {
        r->failed = 4;
        if ((status = r->set_stream(r->handle->handle, r->stream)) != 0) return status;
        r->handle->stream = r->stream;
    }
    if (r->prepare != NULL) {
        const struct prepare *p = r->prepare;
        r->failed = 5;
        status = p->launch(p->function, p->blocks, 1, 1, p->threads, 1, 1, 0, r->stream, p->parameters, NULL);
        if (status != 0) return status;
    }
    r->failed = 3;
    return r->execute(r->handle->handle, r->plan, r->pack);
}

/* Launch in the context of the handle. */
static int launch_in_context(struct run *r) {
    const struct handle *h = r->handle;
    void *current = NULL;
    int status;
    if (h->get_current == NULL || (h->get_current(&current) == 0 && current == h->context)) return launch(r);
    if (h->push(h->context) != 0) return launch(r); /* cuDNN will say what is wrong */
    status = launch(r);
    h->pop(&current);
    return status;
}

static int execute(struct run *r) { return or_raised(launch_in_context(r)); }

/* Launch while other threads may have Python's lock, which is held now. */
static int execute_unlocked(struct run *r) {
    void *state = python->save();
    const int status = execute(r);
    python->restore(state);
    return status;
}

/* What a builtin function is for: its self is a tuple that begins with a capsule of that name. NULL, and an exception, for
 * anything else. */
static void *subject(void *self, const char *name) { return python->pointer(python->item(self, 0), name); }

/* Launch what is bound; a status other than success becomes an exception. METH_NOARGS, of a struct run. */
void *cudnn_backend_py_launch(void *self, void *unused) {
    struct run *r = subject(self, "run");
    const int status = execute_unlocked(r);
    (void)unused;
    if (status != 0) return python->call(r->fail, "ii", r->failed, status);
    python->retain(python->none);
    return python->none;
}

static int fill(struct call *c) {
    const int status = cudnn_backend_py_fill(c->pack, c->run.pack, c->row, c->workspace, &c->run.failed);
    c->filled = status == 0;
    return status;
}

static int fits(const struct wanted *w, const struct dl_tensor *t, uint64_t place) {
    const int64_t bits = (int64_t)t->bits * t->lanes;
    int64_t elements = 1; /* from the first to the last one */
    if (place & w->misaligned) return 0;
    if (w->bits != 0 && bits != w->bits) return 0;
    if (w->codes != 0 && !(w->codes >> (t->code < 31 ? t->code : 31) & 1)) return 0;
    for (int32_t axis = 0; axis < t->rank; ++axis) {
        int64_t more = t->dims[axis];
        if (more == 0) return w->bytes == 0;
        if (t->strides == NULL) {
            if (__builtin_mul_overflow(elements, more, &elements)) return 0;
        } else if (__builtin_sub_overflow(more, 1, &more) || __builtin_mul_overflow(more, t->strides[axis], &more) ||
                   __builtin_add_overflow(elements, more, &elements)) {
            return 0;
        }
    }
    return !__builtin_mul_overflow(elements, bits, &elements) && elements / 8 >= w->bytes;
}

static const void *type_of(void *object) { return *(void **)((char *)object + python->type_at); }

/* Launch with as many buffers as are given; return 0, a status of cuDNN, LOOK_CLOSER or OTHER_STREAM. Called with
 * Python's lock. */
static int call_with(struct call *c, void *const *objects) {
    if (c->current_stream != NULL) {
        void *stream = NULL;
        if (c->current_stream(DL_CUDA, c->device, &stream) != 0) {
            python->clear();
            return LOOK_CLOSER;
        }
        if (stream != c->run.stream) return OTHER_STREAM;
    }
    for (int32_t index = 0; index < c->given; ++index)
        if (type_of(objects[index]) != c->type) return LOOK_CLOSER;
    if (c->fetch != NULL) c->fetch(objects, c->given);
    for (int32_t index = 0; index < c->given; ++index) {
        struct dl_tensor tensor;
        uint64_t place;
        if (c->read(objects[index], &tensor) != 0) {
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
        const int status = fill(c);
        if (status != 0) return status;
    }
    return execute_unlocked(&c->run);
}

/* Answer that to Python for a tuple of buffers. METH_O, of a struct call. */
void *cudnn_backend_py_call(void *self, void *buffers) {
    struct call *c = subject(self, "call");
    void *objects[MOST_GIVEN];
    if (c->given > MOST_GIVEN || python->size(buffers) != c->given) {
        python->clear(); /* no tuple */
        return python->number(LOOK_CLOSER);
    }
    for (int32_t index = 0; index < c->given; ++index) objects[index] = python->item(buffers, index);
    return python->number(call_with(c, objects));
}

/* Call an object that may have a struct call, of its last stream in one thread, for buffers by position; whatever that is
 * not for, the method that does without gets. METH_FASTCALL | METH_KEYWORDS. */
void *cudnn_backend_py_run(void *self, void *const *buffers, intptr_t count, void *names) {
    void *fast = names == NULL ? python->attribute(self, python->fast) : NULL;
    int status = LOOK_CLOSER;
    if (fast != NULL && fast != python->none) {
        struct call *c = subject(fast, "call");
        if (c != NULL && count == c->given && c->thread == python->thread()) status = call_with(c, buffers);
        if (status > 0) {
            void *raised = python->call(c->run.fail, "ii", c->run.failed, status);
            python->release(fast);
            return raised;
        }
    }
    if (fast != NULL) python->release(fast);
    if (status == 0) {
        python->retain(python->none);
        return python->none;
    }
    python->clear();
    const size_t whole = (size_t)count + (names == NULL ? 0 : (size_t)python->size(names));
    void *answer = NULL, **arguments = malloc((whole + 1) * sizeof *arguments);
    if (arguments == NULL) abort();
    arguments[0] = self;
    memcpy(arguments + 1, buffers, whole * sizeof *arguments);
    answer = python->method(python->slow, arguments, (size_t)count + 1, names);
    free(arguments);
    return answer;
}

/* Launch with the row and the workspace of a call. Python's lock is neither needed nor given back meanwhile. */
int cudnn_backend_py_go(struct call *c) {
    const int status = c->filled ? 0 : fill(c);
    return status != 0 ? status : execute(&c->run);
}

/* Whether an object is an address or a buffer that will do; its address. */
static int read_address(const struct mapping *m, void *object, int on_host, uint64_t *place) {
    struct dl_tensor tensor;
    const void *type = type_of(object);
    if (type == m->int_type) {
        *place = python->address(object);
        if (*place == UINT64_MAX) python->clear(); /* negative or too large: no address */
        return *place != UINT64_MAX && *place != 0;
    }
    if (type != m->type) return 0;
    if (m->read(object, &tensor) != 0) {
        python->clear();
        return 0;
    }
    *place = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
    return *place != 0 && (tensor.device_kind == DL_CUDA || (on_host && tensor.device_kind == DL_CPU));
}

/* The entry of a key; the search begins where the last one ended, since programs keep the order of their keys. */
static const struct entry *find_entry(const struct mapping *m, void *key, uint32_t *from) {
    const void *type = type_of(key);
    uint64_t uid = UINT64_MAX;
    if (type == m->int_type && (uid = python->address(key)) == UINT64_MAX) {
        python->clear();
        return NULL;
    }
    for (uint32_t tried = 0; tried < m->entry_count; ++tried) {
        const struct entry *e = &m->entries[*from];
        *from = *from + 1 < m->entry_count ? *from + 1 : 0;
        if (uid != UINT64_MAX ? (uint64_t)e->uid == uid : e->key == key) return e;
    }
    return NULL;
}

static int read_mapping(struct mapping *m, void *dict, void *workspace) {
    void *key, *value;
    intptr_t at = 0;
    uint32_t from = 0;
    uint64_t found = 0, place = 0;
    while (python->next(dict, &at, &key, &value)) {
        const struct entry *e = find_entry(m, key, &from);
        if (e == NULL || !read_address(m, value, e->on_host, &place)) return 0;
        found |= UINT64_C(1) << e->place;
        if (m->row[e->place] != place) {
            m->row[e->place] = place;
            m->filled = 0;
        }
    }
    if (found != m->wanted) return 0;
    if (m->has_base) {
        if (!read_address(m, workspace, 0, &place)) return 0;
        if (m->base != place) {
            for (uint32_t index = 0; index < m->scratch_count; ++index)
                m->row[m->scratch[index].place] = place + m->scratch[index].offset;
            m->base = place;
            m->workspace = m->has_own ? place + m->own_offset : 0;
            m->filled = 0;
        }
    }
    return 1;
}

/* Whether a call is what the last ones were: in their CUDA context, and not into a CUDA graph that has to be told what
 * to keep. */
static int is_usual(const struct mapping *m, void *handle) {
    void *found = NULL;
    int status = 0;
    if (m->get_current(&found) == 0 && found != m->context) return 0;
    if (m->is_capturing == NULL || m->get_stream(handle, &found) != 0) return 1;
    return m->is_capturing(found, &status) != 0 || status == 0;
}

/* Launch with a dict; return 0, LOOK_CLOSER, or a status and above its 16 bits the function. Called with Python's
 * lock, which others may have during the launch: another thread that comes meanwhile has to look closer. */
static int call_with_mapping(struct mapping *m, void *handle, void *dict, void *workspace) {
    int status = LOOK_CLOSER, failed = 3;
    if (!is_usual(m, handle)) return LOOK_CLOSER;
    if (__atomic_exchange_n(&m->busy, 1, __ATOMIC_ACQUIRE)) return LOOK_CLOSER;
    if (read_mapping(m, dict, workspace)) {
        status = m->filled ? 0 : cudnn_backend_py_fill(m->pack, m->to, m->row, (void *)(uintptr_t)m->workspace, &failed);
        if (status == 0) {
            void *state = python->save();
            m->filled = 1;
            failed = 3;
            status = or_raised(m->execute(handle, m->plan, m->to));
            python->restore(state);
        }
    }
    __atomic_store_n(&m->busy, 0, __ATOMIC_RELEASE);
    return status > 0 ? status | failed << 16 : status;
}

/* A builtin function of a handle's address, a dict and a workspace. */
void *cudnn_backend_py_call_mapping(void *self, void *const *arguments, intptr_t count) {
    uint64_t handle = 0;
    if (count != 3) return python->number(LOOK_CLOSER);
    if (arguments[0] != python->none && (handle = python->address(arguments[0])) == UINT64_MAX) {
        python->clear();
        return python->number(LOOK_CLOSER);
    }
    return python->number(call_with_mapping(subject(self, "mapping"), (void *)(uintptr_t)handle, arguments[1], arguments[2]));
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
