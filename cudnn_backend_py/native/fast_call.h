/* The structures of a launch, filled by fast_call.py; for fast_call.c and whoever calls it from C or C++. */
#ifndef CUDNN_BACKEND_PY_FAST_CALL_H
#define CUDNN_BACKEND_PY_FAST_CALL_H
#include <stddef.h>
#include <stdint.h>

/* Of these structures and functions; fast_call.py takes no other. */
#define CUDNN_BACKEND_PY_FAST_CALL_VERSION 8

/* A status that is none of cuDNN's: Python code that was called meanwhile raised an exception, see callbacks.c. */
#define CUDNN_BACKEND_PY_RAISED 0xFFFF

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
    int32_t bits;        /* of an element; 0 for any */
    uint32_t codes;      /* DLPack's type codes that will do, as bits; all from 31 on share the last bit; 0 for any */
};

struct python { /* of its stable ABI */
    void *(*item)(void *tuple, intptr_t index);         /* PyTuple_GetItem: borrowed */
    void (*release)(void *object);                      /* Py_DecRef */
    void (*clear)(void);                                /* PyErr_Clear */
    void *(*save)(void);                                /* PyEval_SaveThread */
    void (*restore)(void *state);                       /* PyEval_RestoreThread */
    void *(*call)(void *callable, const char *how, ...); /* PyObject_CallFunction */
    void *(*pointer)(void *capsule, const char *name);  /* PyCapsule_GetPointer */
    void *(*number)(long value);                        /* PyLong_FromLong */
    void (*retain)(void *object);                       /* Py_IncRef */
    int (*next)(void *dict, intptr_t *at, void **key, void **value); /* PyDict_Next: borrowed */
    unsigned long long (*address)(void *number);        /* PyLong_AsUnsignedLongLong */
    void *(*attribute)(void *object, void *name);       /* PyObject_GetAttr: a reference of ours */
    void *(*method)(void *name, void *const *arguments, size_t count, void *names); /* PyObject_VectorcallMethod */
    intptr_t (*size)(void *tuple);                      /* PyTuple_Size */
    unsigned long (*thread)(void);                      /* PyThread_get_thread_ident */
    int (*lock)(void);                                  /* PyGILState_Ensure */
    void (*unlock)(int state);                          /* PyGILState_Release */
    void *(*known)(void);                               /* PyGILState_GetThisThreadState: NULL in a thread of C */
    void (*fetch)(void **type, void **value, void **traceback); /* PyErr_Fetch */
    void (*raise)(void *type, void *value, void *traceback);    /* PyErr_Restore */
    void (*unraisable)(void *where);                    /* PyErr_WriteUnraisable */
    int (*running)(void);                               /* Py_IsInitialized: 0 once the interpreter ends */
    void *(*capsule)(void *pointer, const char *name, void (*end)(void *)); /* PyCapsule_New */
    int (*later)(int (*function)(void *), void *given); /* Py_AddPendingCall: between two instructions of the main thread */
    void *none, *fast, *slow; /* None, and names: of the struct call of an object, of its method that does without */
    intptr_t type_at;         /* where an object says its type */
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

struct prepare { /* a kernel of ours that runs on the stream before the plan */
    int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                  unsigned shared, void *stream, void **parameters, void **extra); /* cuLaunchKernel */
    void *function;
    void **parameters; /* where its parameters lie */
    uint32_t blocks, threads;
};

struct run { /* a launch */
    int (*execute)(void *handle, void *plan, void *pack);
    int (*set_stream)(void *handle, void *stream);
    struct handle *handle;
    void *stream, *plan, *pack;
    void *fail;     /* callable that raises for the function that failed and its status */
    const struct prepare *prepare; /* NULL: none */
    int32_t failed; /* the function that refused: 0 initialize, 1 set, 2 finalize, 3 execute, 4 set_stream, 5 prepare */
};

struct call {
    struct run run;
    const struct pack *pack;
    const struct wanted *wanted; /* one per buffer; NULL: no checks */
    uint64_t *row;               /* an address per uid, buffers first */
    void *type;                  /* of the buffers */
    int (*read)(void *object, struct dl_tensor *out);
    void (*fetch)(void *const *objects, int count); /* have what `read` reads on its way from memory; NULL: none */
    int (*current_stream)(int32_t device_kind, int32_t device, void **out); /* NULL: do not ask */
    void *workspace;
    int32_t device, given;
    unsigned long thread; /* whose it is */
    int32_t filled; /* whether the pack holds the row */
};

struct entry { /* a key a variant pack may have, and where its address goes */
    void *key;       /* the object; compared by identity */
    int64_t uid;     /* for keys that are ints; -1: none */
    int32_t place;   /* in the row */
    int32_t on_host; /* whether memory of the host will do */
};

struct scratch { /* a tensor that lies in the workspace */
    uint64_t offset;
    int32_t place; /* in the row */
};

struct mapping { /* a plan that is called with a dict from tensors to buffers or addresses */
    const struct pack *pack;
    int (*execute)(void *handle, void *plan, void *pack);
    void *plan, *to;       /* to: the variant pack */
    void *type, *int_type; /* of buffers and of addresses */
    int (*read)(void *object, struct dl_tensor *out);
    int (*get_current)(void **context);               /* cuCtxGetCurrent */
    int (*get_stream)(void *handle, void **stream);   /* cudnnGetStream */
    int (*is_capturing)(void *stream, int *status);   /* cuStreamIsCapturing; NULL: do not ask */
    void *context;                                    /* that was current at the last call that was looked at */
    const struct entry *entries;
    const struct scratch *scratch;
    uint64_t *row;       /* an address per uid */
    uint64_t wanted;     /* places that must be given, as bits */
    uint64_t base;       /* of the workspace that was given */
    uint64_t workspace;  /* of the plan, at own_offset of it */
    uint64_t own_offset;
    uint32_t entry_count, scratch_count;
    int32_t has_base, has_own; /* whether a workspace must be given; whether the plan needs a part of it */
    int32_t filled;      /* whether the pack holds row and workspace */
    int32_t busy;        /* whether a thread is in a call */
};

#ifndef __cplusplus
extern __attribute__((visibility("hidden"))) const struct python *python;
extern __attribute__((visibility("hidden"))) int cudnn_backend_py_has_kept(void);
#endif

#endif
