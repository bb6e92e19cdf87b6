/* Where C calls Python, and where Python's objects end.
 *
 * An exception cannot pass through a C function. One that Python code raises which C calls is kept in its thread, and is
 * raised by whoever called the C function, when that has returned: cudnn_backend_py_raise. No instruction of Python's runs
 * between the moment it is raised and the moment it is kept, so it does not matter where a signal's handler raises.
 * Native objects are destroyed without any code of Python: a handler that would raise there runs afterwards.
 */
#include <stdlib.h>
#include <unistd.h>

#include "fast_call.h"

struct exception {
    void *type, *value, *traceback;
};

static __thread struct exception kept;
static __thread int is_inside; /* whether this thread is in the receiver */
static void *receiver;

/* Written with Python's lock. */
int cudnn_backend_py_waiting; /* exceptions that are kept, of all threads */
int cudnn_backend_py_inside;  /* threads that are in the receiver */

int cudnn_backend_py_has_kept(void) { return kept.type != NULL; }

/* Have `function(severity, user data, address of the debug info, address of the message)` hear cuDNN. It is never freed. */
void cudnn_backend_py_listen(void *function) {
    python->retain(function);
    receiver = function;
}

/* A cudnnCallback_t. What the receiver makes cuDNN say is not told to it, and nothing is while an exception of its waits. */
void cudnn_backend_py_receive(int severity, void *user_data, const void *info, const char *message) {
    struct exception before = {NULL, NULL, NULL};
    void *answer;
    int state, is_known;
    if (is_inside || kept.type != NULL || receiver == NULL || !python->running()) return;
    is_known = python->known() != NULL;
    state = python->lock();
    is_inside = 1;
    ++cudnn_backend_py_inside;
    python->fetch(&before.type, &before.value, &before.traceback);
    answer = python->call(receiver, "iKKK", severity, (unsigned long long)(uintptr_t)user_data,
                          (unsigned long long)(uintptr_t)info, (unsigned long long)(uintptr_t)message);
    if (answer != NULL) {
        python->release(answer);
    } else if (is_known) {
        python->fetch(&kept.type, &kept.value, &kept.traceback);
        ++cudnn_backend_py_waiting;
    } else {
        python->unraisable(receiver); /* in a thread of cuDNN's own, nobody is there to raise it to */
    }
    python->raise(before.type, before.value, before.traceback);
    is_inside = 0;
    --cudnn_backend_py_inside;
    python->unlock(state);
}

/* Raise what this thread keeps, if anything. Called with Python's lock. */
void *cudnn_backend_py_raise(void) {
    const struct exception raised = kept;
    if (raised.type == NULL) {
        python->retain(python->none);
        return python->none;
    }
    kept.type = kept.value = kept.traceback = NULL;
    --cudnn_backend_py_waiting;
    python->raise(raised.type, raised.value, raised.traceback);
    return NULL;
}

struct end { /* how native objects of a kind end, filled by ends.py */
    int (*destroy)(void *object);
    int (*exchange)(int *mode);         /* cuThreadExchangeStreamCaptureMode; NULL: captures need no care */
    int (*get_current)(void **context); /* cuCtxGetCurrent; NULL: the context may change */
    int (*set_current)(void *context);  /* cuCtxSetCurrent */
    int is_brief;                       /* whether Python's lock is kept, which costs less */
};

struct held { /* a native object */
    void *keeps;    /* an object that is needed until it ends */
    void **pointer; /* to it, in memory that `keeps` holds; NULL there: there is none */
    const struct end *end;
    int process;
};

#define CAPTURE_RELAXED 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */

static void destroy(const struct end *e, void *object) {
    void *context = NULL;
    int mode = CAPTURE_RELAXED;
    if (e->get_current != NULL && e->get_current(&context) != 0) context = NULL;
    if (e->exchange != NULL) e->exchange(&mode);
    e->destroy(object);
    if (e->exchange != NULL) e->exchange(&mode);
    if (e->get_current != NULL) e->set_current(context);
}

/* A pending call. */
static int raise_later(void *unused) {
    void *answer = cudnn_backend_py_raise();
    (void)unused;
    if (answer == NULL) return -1;
    python->release(answer);
    return 0;
}

/* Never at the end of the interpreter, and never in a forked process, see ends.py. */
static void release(void *capsule) {
    struct held *h = python->pointer(capsule, NULL);
    if (*h->pointer != NULL && h->process == getpid() && python->running()) {
        void *state = h->end->is_brief ? NULL : python->save();
        destroy(h->end, *h->pointer);
        if (state != NULL) python->restore(state);
        /* Nobody called this who could raise it: the main thread does at once, another one with its next call. */
        if (kept.type != NULL) python->later(raise_later, NULL);
    }
    python->release(h->keeps);
    free(h);
}

/* An object with whose end a native object ends. A builtin function of what that needs, and the address of its pointer. */
void *cudnn_backend_py_hold(void *self, void *const *arguments, intptr_t count) {
    /* Of what is no number an exception is made. */
    const unsigned long long address = python->address(count == 2 ? arguments[1] : python->none);
    const struct end *kind = address == UINT64_MAX ? NULL : python->pointer(python->item(self, 0), "end");
    struct held *h;
    void *capsule;
    if (kind == NULL) return NULL;
    if ((h = malloc(sizeof *h)) == NULL) abort();
    *h = (struct held){arguments[0], (void **)(uintptr_t)address, kind, getpid()};
    capsule = python->capsule(h, NULL, release);
    if (capsule == NULL) {
        free(h);
        return NULL;
    }
    python->retain(h->keeps);
    return capsule;
}
