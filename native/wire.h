#pragma once

#include "columns.h"

/* (begins, ends) of the consecutive whole messages of a repeated field; None where a length is not regular. */
PyObject *wire_records(PyObject *module, PyObject *args);

/* (number, wire type, value, begin, end) of the first field of each message; None where one is not regular. */
PyObject *wire_fields(PyObject *module, PyObject *args);
