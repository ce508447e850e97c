/* Runs a schedule back to back, each op and call as early as it can be: `run` of advisor/views/replay/simulate.py, call by call.

   Columns come as bytes of int64 and double. Their lengths and every index in them are held against each other before anything is
   read, so that no schedule makes it read or write outside of them. */

#include "replay.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { NO_OP = -1, EARLIER = -2, MOST_REPEATS = 64 };
static const double NEVER = -1e18;

typedef struct {
    const double *host, *call, *tail, *dur, *latency, *gap;
    const int64_t *waits, *first_op, *stream, *after;
    const char *skip;
    Py_ssize_t calls, ops, streams;
} Schedule;

/* The values of a column, NULL with an error set where there are not as many as there must be. */
static const void *column(PyObject *bytes, Py_ssize_t count, size_t size) {
    char *values;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &values, &length) < 0) return NULL;
    if (length == count * (Py_ssize_t)size) return values;
    PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    return NULL;
}

static bool within(const int64_t *values, Py_ssize_t count, int64_t least, int64_t below) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (values[i] < least || values[i] >= below) return false;
    return true;
}

static bool whole(const Schedule *s) {
    for (Py_ssize_t i = 0; i < s->calls; i++)
        if (s->first_op[i] > s->first_op[i + 1]) return false;
    return within(s->first_op, s->calls + 1, 0, s->ops + 1) && within(s->waits, s->calls, EARLIER, s->ops) &&
           within(s->stream, s->ops, 0, s->streams) && within(s->after, s->ops, NO_OP, s->ops);
}

/* Fills finished with when each repeat was done; returns how many there were. ends: scratch. */
static int run(const Schedule *s, int repeats, double now, double steady, double *free_at, double *ends, double *finished, double *latest) {
    double done = now;
    for (Py_ssize_t i = 0; i < s->streams; i++)
        if (free_at[i] > done) done = free_at[i];
    for (Py_ssize_t k = 0; k < s->ops; k++) ends[k] = NEVER;
    for (int r = 0; r < repeats; r++) {
        double before = done;
        *latest = NEVER;
        for (Py_ssize_t i = 0; i < s->calls; i++) {
            now += s->host[i];
            for (int64_t k = s->first_op[i]; k < s->first_op[i + 1]; k++) {
                double *was = free_at + s->stream[k];
                if (s->skip[k]) {
                    ends[k] = *was;
                    continue;
                }
                double start = now + s->latency[k], ready = *was + s->gap[k];
                if (ready > start) start = ready;
                if (s->after[k] >= 0 && (ready = ends[s->after[k]] + s->gap[k]) > start) start = ready;
                double end = start + s->dur[k];
                *was = ends[k] = end;
                if (end > done) done = end;
                if (end > *latest) *latest = end;
            }
            now += s->call[i];
            if (s->waits[i] == NO_OP) continue;
            double back = (s->waits[i] == EARLIER ? before : ends[s->waits[i]]) + s->tail[i];
            if (back > now) now = back;
        }
        finished[r] = done > now ? done : now;
        if (r < 2) continue;
        double change = finished[r] - 2 * finished[r - 1] + finished[r - 2];
        if ((change < 0 ? -change : change) <= steady * (finished[r] - finished[r - 1])) return r + 1;
    }
    return repeats;
}

PyObject *replay(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *host, *call, *tail, *dur, *latency, *gap, *free_at, *waits, *first_op, *stream, *after, *skip;
    Schedule s;
    int repeats;
    double start, steady, latest;
    if (!PyArg_ParseTuple(args, "SSSSSSSSSSSSidd", &host, &call, &tail, &dur, &latency, &gap, &free_at, &waits, &first_op, &stream, &after, &skip,
                          &repeats, &start, &steady))
        return NULL;
    s.calls = PyBytes_Size(host) / (Py_ssize_t)sizeof *s.host;
    s.ops = PyBytes_Size(skip);
    s.streams = PyBytes_Size(free_at) / (Py_ssize_t)sizeof(double);
    const double *was;
    if (!(s.host = column(host, s.calls, sizeof *s.host)) || !(s.call = column(call, s.calls, sizeof *s.call)) ||
        !(s.tail = column(tail, s.calls, sizeof *s.tail)) || !(s.dur = column(dur, s.ops, sizeof *s.dur)) ||
        !(s.latency = column(latency, s.ops, sizeof *s.latency)) || !(s.gap = column(gap, s.ops, sizeof *s.gap)) ||
        !(was = column(free_at, s.streams, sizeof *was)) || !(s.waits = column(waits, s.calls, sizeof *s.waits)) ||
        !(s.first_op = column(first_op, s.calls + 1, sizeof *s.first_op)) || !(s.stream = column(stream, s.ops, sizeof *s.stream)) ||
        !(s.after = column(after, s.ops, sizeof *s.after)) || !(s.skip = column(skip, s.ops, sizeof *s.skip)))
        return NULL;
    if (repeats < 1 || repeats > MOST_REPEATS || !whole(&s)) return PyErr_Format(PyExc_ValueError, "not a schedule");
    double finished[MOST_REPEATS], *scratch = malloc(((size_t)s.streams + (size_t)s.ops + 1) * sizeof(double));
    if (!scratch) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < s.streams; i++) scratch[i] = was[i];
    int count = run(&s, repeats, start, steady, scratch, scratch + s.streams, finished, &latest);
    free(scratch);
    PyObject *list = PyList_New(count);
    for (int r = 0; list && r < count; r++) {
        PyObject *value = PyFloat_FromDouble(finished[r]);
        if (!value || PyList_SetItem(list, r, value) < 0) Py_CLEAR(list);
    }
    return list ? Py_BuildValue("Nd", list, latest > NEVER ? latest : start) : NULL;
}
