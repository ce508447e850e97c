#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* The values of a column that came as bytes, NULL with an error set where there are not as many as there must be. */
static inline const void *column(PyObject *bytes, Py_ssize_t count, size_t size) {
    char *values;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &values, &length) < 0) return NULL;
    if (length == count * (Py_ssize_t)size) return values;
    PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    return NULL;
}

static inline bool within(const int64_t *values, Py_ssize_t count, int64_t least, int64_t below) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (values[i] < least || values[i] >= below) return false;
    return true;
}
