/* The accelerated append of `tiered`: one plain record into the pending rows, without a Python frame.

It works on the same objects as the Python method: the types below are bases of `LocalTopic`, `PartitionWriter`,
`PendingRows` and `RecordBuffer`, and hold in C fields what one append reads. `PlainAppend.append` takes the plain case
only: a value of exactly `bytes`, a key of exactly `bytes` or none, a topic of records that does not wait, an open writer,
a free lock, and room in the block. Everything else goes to the Python method `_append`, with the same arguments.

Between taking the lock and giving it back no Python code runs and no signal is handled:
- what can start the garbage collector (the answer, a tuple) is allocated before, as a finalizer may append, too;
- lists grow by `PyList_Append`, and what was appended is cut back where a later list cannot grow.

Stable ABI of CPython 3.11. `INTERFACE` is raised with every change of a name or a field below. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define INTERFACE 2

static PyTypeObject *lock_type, *rows_type, *pending_type, *writer_type;
static PyObject *key_name, *sticky_name, *partitions_name, *python_append_name;
static uint32_t crc_table[256];

/* -- fields: what the types below have in common ------------------------------------------------------------------- */

static void free_collected(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    ((inquiry)PyType_GetSlot(type, Py_tp_clear))(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* -- Lock: a lock that C can try without a call -------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyThread_type_lock handle;
} Lock;

static PyObject *Lock_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    Lock *self = (Lock *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self != NULL && (self->handle = PyThread_allocate_lock()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void Lock_dealloc(Lock *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->handle != NULL)
        PyThread_free_lock(self->handle);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* As `threading.Lock`: waits without the GIL, and Ctrl-C ends the wait. */
static PyObject *Lock_enter(Lock *self, PyObject *unused)
{
    if (PyThread_acquire_lock(self->handle, NOWAIT_LOCK))
        Py_RETURN_TRUE;
    for (;;) {
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(self->handle, -1, 1);
        Py_END_ALLOW_THREADS
        if (status == PY_LOCK_ACQUIRED)
            Py_RETURN_TRUE;
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
}

static PyObject *Lock_locked(Lock *self, PyObject *unused)
{
    if (!PyThread_acquire_lock(self->handle, NOWAIT_LOCK))
        Py_RETURN_TRUE;
    PyThread_release_lock(self->handle);
    Py_RETURN_FALSE;
}

static PyObject *Lock_release(Lock *self, PyObject *unused)
{
    if (PyThread_acquire_lock(self->handle, NOWAIT_LOCK)) {
        PyThread_release_lock(self->handle);
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    PyThread_release_lock(self->handle);
    Py_RETURN_NONE;
}

static PyObject *Lock_exit(Lock *self, PyObject *const *args, Py_ssize_t count)
{
    return Lock_release(self, NULL);
}

static PyMethodDef Lock_methods[] = {
    {"acquire", (PyCFunction)Lock_enter, METH_NOARGS, "Wait for the lock, and take it."},
    {"release", (PyCFunction)Lock_release, METH_NOARGS, "Give the lock back."},
    {"locked", (PyCFunction)Lock_locked, METH_NOARGS, "Whether somebody has the lock."},
    {"__enter__", (PyCFunction)Lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void *)Lock_exit, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot Lock_slots[] = {
    {Py_tp_doc, "A lock like `threading.Lock`, which C can try."},
    {Py_tp_new, Lock_new},
    {Py_tp_dealloc, Lock_dealloc},
    {Py_tp_methods, Lock_methods},
    {0},
};

static PyType_Spec Lock_spec = {"tiered_accelerator.Lock", sizeof(Lock), 0, Py_TPFLAGS_DEFAULT, Lock_slots};

/* -- RowFields: the pending rows of one partition ------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    long long base_offset, bytes;
    PyObject *timestamps_us, *keys, *values, *headers, *numbers;
} Rows;

static int Rows_traverse(Rows *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->timestamps_us);
    Py_VISIT(self->keys);
    Py_VISIT(self->values);
    Py_VISIT(self->headers);
    Py_VISIT(self->numbers);
    return 0;
}

static int Rows_clear(Rows *self)
{
    Py_CLEAR(self->timestamps_us);
    Py_CLEAR(self->keys);
    Py_CLEAR(self->values);
    Py_CLEAR(self->headers);
    Py_CLEAR(self->numbers);
    return 0;
}

static PyMemberDef Rows_members[] = {
    {"base_offset", T_LONGLONG, offsetof(Rows, base_offset)},
    {"bytes", T_LONGLONG, offsetof(Rows, bytes)},
    {"timestamps_us", T_OBJECT_EX, offsetof(Rows, timestamps_us)},
    {"keys", T_OBJECT_EX, offsetof(Rows, keys)},
    {"values", T_OBJECT_EX, offsetof(Rows, values)},
    {"headers", T_OBJECT_EX, offsetof(Rows, headers)},
    {"numbers", T_OBJECT_EX, offsetof(Rows, numbers)},
    {NULL},
};

static PyType_Slot Rows_slots[] = {
    {Py_tp_doc, "The fields of `tiered.hot.row_buffer.RecordBuffer`."},
    {Py_tp_members, Rows_members},
    {Py_tp_traverse, Rows_traverse},
    {Py_tp_clear, Rows_clear},
    {Py_tp_dealloc, free_collected},
    {0},
};

static PyType_Spec Rows_spec = {
    "tiered_accelerator.RowFields", sizeof(Rows), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, Rows_slots,
};

static int cut(PyObject *list, Py_ssize_t length)
{
    return PyList_SetSlice(list, length, PyList_Size(list), NULL);
}

/* Add a row, or nothing. The timestamp comes last: it makes the row count. */
static int push(Rows *rows, Py_ssize_t row, PyObject *key, PyObject *value, PyObject *timestamp_us, Py_ssize_t size)
{
    if (PyList_Append(rows->keys, key) == 0 && PyList_Append(rows->values, value) == 0
        && PyList_Append(rows->timestamps_us, timestamp_us) == 0) {
        rows->bytes += size;
        return 0;
    }
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    if (cut(rows->keys, row) || cut(rows->values, row) || cut(rows->timestamps_us, row))
        PyErr_Clear(); /* to remove the last items of a list needs no memory */
    PyErr_Restore(kind, error, trace);
    return -1;
}

/* -- PendingFields: the rows of one partition that wait to be written ---------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *lock, *buffer, *fault;
    Py_ssize_t bytes_max, rows_max;
} Pending;

static int Pending_traverse(Pending *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->lock);
    Py_VISIT(self->buffer);
    Py_VISIT(self->fault);
    return 0;
}

static int Pending_clear(Pending *self)
{
    Py_CLEAR(self->lock);
    Py_CLEAR(self->buffer);
    Py_CLEAR(self->fault);
    return 0;
}

static PyMemberDef Pending_members[] = {
    {"lock", T_OBJECT_EX, offsetof(Pending, lock)},
    {"buffer", T_OBJECT_EX, offsetof(Pending, buffer)},
    {"fault", T_OBJECT_EX, offsetof(Pending, fault)},
    {"_bytes_max", T_PYSSIZET, offsetof(Pending, bytes_max)},
    {"rows_max", T_PYSSIZET, offsetof(Pending, rows_max)},
    {NULL},
};

static PyType_Slot Pending_slots[] = {
    {Py_tp_doc, "The fields of `tiered.hot.pending_rows.PendingRows` that an append reads."},
    {Py_tp_members, Pending_members},
    {Py_tp_traverse, Pending_traverse},
    {Py_tp_clear, Pending_clear},
    {Py_tp_dealloc, free_collected},
    {0},
};

static PyType_Spec Pending_spec = {
    "tiered_accelerator.PendingFields", sizeof(Pending), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, Pending_slots,
};

/* -- WriterFields: the writer of a partition ----------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *pending, *partition;
} Writer;

static int Writer_traverse(Writer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->pending);
    Py_VISIT(self->partition);
    return 0;
}

static int Writer_clear(Writer *self)
{
    Py_CLEAR(self->pending);
    Py_CLEAR(self->partition);
    return 0;
}

static PyMemberDef Writer_members[] = {
    {"pending", T_OBJECT_EX, offsetof(Writer, pending)},
    {"partition", T_OBJECT_EX, offsetof(Writer, partition)},
    {NULL},
};

static PyType_Slot Writer_slots[] = {
    {Py_tp_doc, "The fields of `tiered.hot.partition_writer.PartitionWriter` that an append reads."},
    {Py_tp_members, Writer_members},
    {Py_tp_traverse, Writer_traverse},
    {Py_tp_clear, Writer_clear},
    {Py_tp_dealloc, free_collected},
    {0},
};

static PyType_Spec Writer_spec = {
    "tiered_accelerator.WriterFields", sizeof(Writer), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, Writer_slots,
};

/* -- PlainAppend: the append of a topic ---------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *opened, *writers, *clock, *answer;
    Py_ssize_t record_bytes_max, overhead_bytes;
    char plain;
} Topic;

static int Topic_traverse(Topic *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->opened);
    Py_VISIT(self->writers);
    Py_VISIT(self->clock);
    Py_VISIT(self->answer);
    return 0;
}

static int Topic_clear(Topic *self)
{
    Py_CLEAR(self->opened);
    Py_CLEAR(self->writers);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->answer);
    return 0;
}

static PyMemberDef Topic_members[] = {
    {"opened", T_OBJECT_EX, offsetof(Topic, opened)},
    {"_writers", T_OBJECT_EX, offsetof(Topic, writers)},
    {"plain_clock", T_OBJECT_EX, offsetof(Topic, clock)},
    {"answer", T_OBJECT_EX, offsetof(Topic, answer)},
    {"_record_bytes_max", T_PYSSIZET, offsetof(Topic, record_bytes_max)},
    {"overhead_bytes", T_PYSSIZET, offsetof(Topic, overhead_bytes)},
    {"plain", T_BOOL, offsetof(Topic, plain)},
    {NULL},
};

/* The CRC-32 of zlib. */
static uint32_t crc32_of(PyObject *key)
{
    const unsigned char *byte = (const unsigned char *)PyBytes_AsString(key), *end = byte + PyBytes_Size(key);
    uint32_t crc = ~(uint32_t)0;
    while (byte < end)
        crc = crc_table[(crc ^ *byte++) & 255] ^ (crc >> 8);
    return ~crc;
}

static PyObject *crc32(PyObject *module, PyObject *key)
{
    if (!PyBytes_CheckExact(key)) {
        PyErr_SetString(PyExc_TypeError, "a key is bytes");
        return NULL;
    }
    return PyLong_FromUnsignedLong(crc32_of(key));
}

/* Return the number of the partition that takes a record, as an int; NULL with or without an error. */
static PyObject *partition_of(Topic *topic, PyObject *key, Py_ssize_t key_bytes)
{
    if (key_bytes == 0)
        return PyObject_GetAttr(topic->opened, sticky_name);
    PyObject *total = PyObject_GetAttr(topic->opened, partitions_name);
    if (total == NULL)
        return NULL;
    long long partitions = PyLong_AsLongLong(total);
    Py_DECREF(total);
    if (partitions < 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a topic has partitions");
        return NULL;
    }
    return PyLong_FromLongLong(partitions == 1 ? 0 : (long long)crc32_of(key) % partitions);
}

static PyObject *timestamp_of(PyObject *clock)
{
    if (clock != Py_None)
        return PyObject_CallNoArgs(clock);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return PyLong_FromLongLong(now.tv_sec * 1000000LL + now.tv_nsec / 1000);
}

/* Append into the pending rows of `writer`; return -1 with an error, 0 where it is not the plain case, 1 where it is there. */
static int append_to(Writer *writer, PyObject *answer, PyObject *key, PyObject *value, PyObject *timestamp_us,
                     Py_ssize_t size)
{
    if (writer->pending == NULL || !PyObject_TypeCheck(writer->pending, pending_type))
        return 0;
    Pending *pending = (Pending *)writer->pending;
    if (pending->lock == NULL || Py_TYPE(pending->lock) != lock_type)
        return 0;
    PyThread_type_lock lock = ((Lock *)pending->lock)->handle;
    if (!PyThread_acquire_lock(lock, NOWAIT_LOCK))
        return 0;
    int done = 0;
    if (pending->fault == Py_None && pending->buffer != NULL && PyObject_TypeCheck(pending->buffer, rows_type)) {
        Rows *rows = (Rows *)pending->buffer;
        Py_ssize_t row = PyList_Size(rows->timestamps_us);
        if (rows->bytes < pending->bytes_max && row < pending->rows_max) {
            PyObject *offset = PyLong_FromLongLong(rows->base_offset + row);
            done = offset == NULL || push(rows, row, key, value, timestamp_us, size) ? -1 : 1;
            if (done == 1) {
                Py_INCREF(writer->partition);
                PyTuple_SetItem(answer, 0, writer->partition);
                PyTuple_SetItem(answer, 1, offset);
            }
            else
                Py_XDECREF(offset);
        }
    }
    PyThread_release_lock(lock);
    return done;
}

/* Return what an append returns; NULL without an error where it is not the plain case. */
static PyObject *append_plain(Topic *topic, PyObject *value, PyObject *key)
{
    if (topic->opened == NULL || topic->writers == NULL || topic->clock == NULL || topic->answer == NULL)
        return NULL;
    Py_ssize_t key_bytes = key == Py_None ? 0 : PyBytes_Size(key);
    Py_ssize_t size = topic->overhead_bytes + PyBytes_Size(value) + key_bytes;
    if (size > topic->record_bytes_max)
        return NULL;
    PyObject *timestamp_us = timestamp_of(topic->clock);
    if (timestamp_us == NULL)
        return NULL;
    PyObject *answer = NULL, *partition = partition_of(topic, key, key_bytes);
    if (partition != NULL) {
        PyObject *writer = PyDict_GetItemWithError(topic->writers, partition);
        Py_DECREF(partition);
        if (writer != NULL && PyObject_TypeCheck(writer, writer_type)) {
            Py_INCREF(writer);
            answer = ((allocfunc)PyType_GetSlot((PyTypeObject *)topic->answer, Py_tp_alloc))(
                (PyTypeObject *)topic->answer, 2);
            if (answer != NULL && append_to((Writer *)writer, answer, key, value, timestamp_us, size) != 1)
                Py_CLEAR(answer);
            Py_DECREF(writer);
        }
    }
    Py_DECREF(timestamp_us);
    return answer;
}

static PyObject *append_in_python(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *method = PyObject_GetAttr(self, python_append_name), *positional = PyTuple_New(count), *named = NULL;
    PyObject *answer = NULL;
    Py_ssize_t total = names == NULL ? 0 : PyTuple_Size(names);
    if (method == NULL || positional == NULL || (total && (named = PyDict_New()) == NULL))
        goto end;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(args[i]);
        PyTuple_SetItem(positional, i, args[i]);
    }
    for (Py_ssize_t i = 0; i < total; i++)
        if (PyDict_SetItem(named, PyTuple_GetItem(names, i), args[count + i]))
            goto end;
    answer = PyObject_Call(method, positional, named);
end:
    Py_XDECREF(method);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return answer;
}

static int is_key(PyObject *name)
{
    return name == key_name || PyUnicode_Compare(name, key_name) == 0;
}

static PyObject *Topic_append(Topic *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    if (self->plain && count == 1 && named <= 1 && PyBytes_CheckExact(args[0])) {
        PyObject *key = Py_None;
        if (named == 0 || (is_key(PyTuple_GetItem(names, 0))
                           && ((key = args[1]) == Py_None || PyBytes_CheckExact(key)))) {
            PyObject *answer = append_plain(self, args[0], key);
            if (answer != NULL || PyErr_Occurred())
                return answer;
        }
    }
    return append_in_python((PyObject *)self, args, count, names);
}

PyDoc_STRVAR(append_doc,
"append($self, /, value, *, key=None, headers=None, timestamp=None,\n       partition=None, sync=None, expected_offset=None)\n--\n\n"
"Append one record; see `tiered.Topic.append`.");

static PyMethodDef Topic_methods[] = {
    {"append", (PyCFunction)(void *)Topic_append, METH_FASTCALL | METH_KEYWORDS, append_doc},
    {NULL},
};

static PyType_Slot Topic_slots[] = {
    {Py_tp_doc, "`append` of a local topic: the plain case, and all other cases by `_append`."},
    {Py_tp_members, Topic_members},
    {Py_tp_methods, Topic_methods},
    {Py_tp_traverse, Topic_traverse},
    {Py_tp_clear, Topic_clear},
    {Py_tp_dealloc, free_collected},
    {0},
};

static PyType_Spec Topic_spec = {
    "tiered_accelerator.PlainAppend", sizeof(Topic), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, Topic_slots,
};

/* -- the module ---------------------------------------------------------------------------------------------------- */

static PyMethodDef module_methods[] = {
    {"crc32", crc32, METH_O, "Return the CRC-32 of a key, as `zlib.crc32` does."},
    {NULL},
};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "tiered_accelerator", "The accelerated append of `tiered`.", -1, module_methods,
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type != NULL && PyModule_AddType(module, (PyTypeObject *)type) < 0)
        Py_CLEAR(type);
    return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit_tiered_accelerator(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
        crc_table[byte] = crc;
    }
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL)
        return NULL;
    key_name = PyUnicode_InternFromString("key");
    sticky_name = PyUnicode_InternFromString("sticky");
    partitions_name = PyUnicode_InternFromString("partitions");
    python_append_name = PyUnicode_InternFromString("_append");
    if (key_name == NULL || sticky_name == NULL || partitions_name == NULL || python_append_name == NULL
        || (lock_type = add_type(module, &Lock_spec)) == NULL
        || (rows_type = add_type(module, &Rows_spec)) == NULL
        || (pending_type = add_type(module, &Pending_spec)) == NULL
        || (writer_type = add_type(module, &Writer_spec)) == NULL
        || add_type(module, &Topic_spec) == NULL
        || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
