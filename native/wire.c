/* Many small protobuf messages at once: `records` and `in_turn` of advisor/sources/jax/wire.py, with the same results.

   None where anything is not regular: Python then says what it is. No byte is read outside of the data, and no message outside of it is taken. */

#include "wire.h"

#include <stdlib.h>

enum { LONGEST_VARINT = 10, VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5, COLUMNS = 5 };

/* Reads a number of 64 bits and goes behind it; false if it does not end, or has more bits. */
static bool varint(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, uint64_t *value) {
    *value = 0;
    for (int i = 0; i < LONGEST_VARINT && *at < size; i++) {
        uint8_t byte = data[(*at)++];
        if (i == LONGEST_VARINT - 1 && (byte & 126)) return false;
        *value |= (uint64_t)(byte & 127) << (7 * i);
        if (byte < 128) return true;
    }
    return false;
}

static PyObject *none(void) {
    Py_INCREF(Py_None);
    return Py_None;
}

PyObject *wire_records(PyObject *Py_UNUSED(module), PyObject *args) {
    char *text;
    Py_ssize_t size, at, end;
    int tag;
    if (!PyArg_ParseTuple(args, "y#nni", &text, &size, &at, &end, &tag)) return NULL;
    if (at < 0 || end > size) return PyErr_Format(PyExc_ValueError, "a range outside of the data");
    const uint8_t *data = (const uint8_t *)text;
    // An empty message has a tag and a size, so there are never more of them.
    size_t most = at < end ? (size_t)(end - at) / 2 + 1 : 1, count = 0;
    int64_t *edges = malloc(2 * most * sizeof *edges);
    if (!edges) return PyErr_NoMemory();
    int64_t *stops = edges + most;
    bool regular = true;
    while (at < end && data[at] == tag) {
        Py_ssize_t here = at + 1;
        uint64_t length;
        if (!(regular = varint(data, size, &here, &length))) break;
        if (here > end || length > (uint64_t)(end - here)) break;
        at = here + (Py_ssize_t)length;
        edges[count] = here;
        stops[count++] = at;
    }
    const Py_ssize_t bytes = (Py_ssize_t)(count * sizeof *edges);
    PyObject *made = regular ? Py_BuildValue("y#y#", (const char *)edges, bytes, (const char *)stops, bytes) : none();
    free(edges);
    return made;
}

/* The first field of a message: its number, wire type, value, and range of bytes. */
static bool field(const uint8_t *data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t stop, int64_t *to[COLUMNS]) {
    uint64_t key, value;
    Py_ssize_t behind = at, after;
    if (!varint(data, size, &behind, &key) || key >> 3 == 0 || key >> 63) return false;
    after = behind;
    if (!varint(data, size, &after, &value)) return false;
    Py_ssize_t begin = behind, end = after;
    int wire = (int)(key & 7);
    if (wire == BYTES) {
        if (value > (uint64_t)size) return false;
        begin = after, end = after + (Py_ssize_t)value;
    } else if (wire == FIXED_64 || wire == FIXED_32) {
        end = behind + (wire == FIXED_64 ? 8 : 4);
    } else if (wire != VARINT) {
        return false;
    }
    if (end > stop) return false;
    *to[0]++ = (int64_t)(key >> 3), *to[1]++ = wire, *to[2]++ = (int64_t)value, *to[3]++ = begin, *to[4]++ = end;
    return true;
}

PyObject *wire_fields(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *starts, *stops, *made[COLUMNS] = {NULL};
    char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#SS", &text, &size, &starts, &stops)) return NULL;
    const Py_ssize_t width = sizeof(int64_t), count = PyBytes_Size(starts) / width;
    const int64_t *start = column(starts, count, width), *stop = column(stops, count, width);
    if (!start || !stop) return NULL;
    bool regular = within(start, count, 0, size + 1) && within(stop, count, 0, size + 1);
    int64_t *to[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        if (!(made[i] = PyBytes_FromStringAndSize(NULL, count * width))) {
            while (i--) Py_DECREF(made[i]);
            return NULL;
        }
        to[i] = (int64_t *)PyBytes_AsString(made[i]);
    }
    for (Py_ssize_t i = 0; regular && i < count; i++) regular = field((const uint8_t *)text, size, (Py_ssize_t)start[i], (Py_ssize_t)stop[i], to);
    if (regular) return Py_BuildValue("NNNNN", made[0], made[1], made[2], made[3], made[4]);
    for (int i = 0; i < COLUMNS; i++) Py_DECREF(made[i]);
    return none();
}
