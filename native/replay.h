#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* (when each repeat was done, when the last op of the last one ended); ValueError where the columns are not a schedule. */
PyObject *replay(PyObject *module, PyObject *args);
