#pragma once

#include "columns.h"

/* (when each repeat was done, when the last op of the last one ended); ValueError where the columns are not a schedule. */
PyObject *replay(PyObject *module, PyObject *args);

/* (when each repeat was done, the nodes of the longest path to the end of the last, last first); ValueError where the columns are not a schedule. */
PyObject *longest(PyObject *module, PyObject *args);
