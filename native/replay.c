/* Runs a schedule back to back, each op and call as early as it can be: `run` of advisor/views/replay/simulate.py, call by call, and
   `longest_path` of longest_path.py beside it.

   Columns come as bytes of int64 and double. Their lengths and every index in them are held against each other before anything is
   read, so that no schedule makes it read or write outside of them. */

#include "replay.h"

#include <stdlib.h>

enum { NO_OP = -1, EARLIER = -2, BEGINNING = -2, MOST_REPEATS = 64 };
static const double NEVER = -1e18;

typedef struct {
    const double *host, *call, *tail, *dur, *latency, *gap;
    const int64_t *waits, *first_op, *stream, *after;
    const char *skip;
    Py_ssize_t calls, ops, streams;
} Schedule;

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

/* The arguments of both functions: a schedule, when its streams are free, how often it is run, and two times. */
static bool taken(PyObject *args, Schedule *s, const double **was, int *repeats, double *one, double *other) {
    PyObject *host, *call, *tail, *dur, *latency, *gap, *free_at, *waits, *first_op, *stream, *after, *skip;
    if (!PyArg_ParseTuple(args, "SSSSSSSSSSSSidd", &host, &call, &tail, &dur, &latency, &gap, &free_at, &waits, &first_op, &stream, &after, &skip,
                          repeats, one, other))
        return false;
    s->calls = PyBytes_Size(host) / (Py_ssize_t)sizeof *s->host;
    s->ops = PyBytes_Size(skip);
    s->streams = PyBytes_Size(free_at) / (Py_ssize_t)sizeof(double);
    if (!(s->host = column(host, s->calls, sizeof *s->host)) || !(s->call = column(call, s->calls, sizeof *s->call)) ||
        !(s->tail = column(tail, s->calls, sizeof *s->tail)) || !(s->dur = column(dur, s->ops, sizeof *s->dur)) ||
        !(s->latency = column(latency, s->ops, sizeof *s->latency)) || !(s->gap = column(gap, s->ops, sizeof *s->gap)) ||
        !(*was = column(free_at, s->streams, sizeof **was)) || !(s->waits = column(waits, s->calls, sizeof *s->waits)) ||
        !(s->first_op = column(first_op, s->calls + 1, sizeof *s->first_op)) || !(s->stream = column(stream, s->ops, sizeof *s->stream)) ||
        !(s->after = column(after, s->ops, sizeof *s->after)) || !(s->skip = column(skip, s->ops, sizeof *s->skip)))
        return false;
    if (*repeats >= 1 && *repeats <= MOST_REPEATS && whole(s)) return true;
    PyErr_SetString(PyExc_ValueError, "not a schedule");
    return false;
}

static PyObject *floats(const double *values, int count) {
    PyObject *list = PyList_New(count);
    for (int r = 0; list && r < count; r++) {
        PyObject *value = PyFloat_FromDouble(values[r]);
        if (!value || PyList_SetItem(list, r, value) < 0) Py_CLEAR(list);
    }
    return list;
}

PyObject *replay(PyObject *Py_UNUSED(module), PyObject *args) {
    Schedule s;
    const double *was;
    int repeats;
    double start, steady, latest = NEVER;
    if (!taken(args, &s, &was, &repeats, &start, &steady)) return NULL;
    double finished[MOST_REPEATS], *scratch = malloc(((size_t)s.streams + (size_t)s.ops + 1) * sizeof(double));
    if (!scratch) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < s.streams; i++) scratch[i] = was[i];
    int count = run(&s, repeats, start, steady, scratch, scratch + s.streams, finished, &latest);
    free(scratch);
    PyObject *list = floats(finished, count);
    return list ? Py_BuildValue("Nd", list, latest > NEVER ? latest : start) : NULL;
}

/* A schedule run back to back. waited: for each op, then for each call, of all repeats, the op that it waited for, NO_OP without one. stands: the op that each
   stands for. */
typedef struct {
    int64_t *waited, *of_call, *stands, *last_on;
    double *end, done[MOST_REPEATS + 1];
    int64_t done_with;
} Run;

static void forward(const Schedule *s, int repeats, Run *m) {
    double now = 0, idle_at = 0;
    int64_t idle = BEGINNING;
    m->done[0] = 0;
    for (Py_ssize_t k = 0; k < s->ops; k++) m->stands[k] = NO_OP;
    for (Py_ssize_t i = 0; i < s->streams; i++) m->last_on[i] = NO_OP;
    for (int r = 0; r < repeats; r++) {
        int64_t earlier = idle, *of_call = m->of_call + r * s->calls;
        double earlier_at = idle_at;
        for (Py_ssize_t i = 0; i < s->calls; i++) {
            now += s->host[i];
            for (int64_t k = s->first_op[i]; k < s->first_op[i + 1]; k++) {
                int64_t *before = m->last_on + s->stream[k], op = r * s->ops + k, waited = NO_OP, other;
                if (s->skip[k]) {
                    m->stands[k] = *before;
                    continue;
                }
                double start = now + s->latency[k], ready;
                if (*before >= 0 && (ready = m->end[*before] + s->gap[k]) > start) start = ready, waited = *before;
                if (s->after[k] >= 0 && (other = m->stands[s->after[k]]) >= 0 && (ready = m->end[other] + s->gap[k]) > start) start = ready, waited = other;
                m->waited[op] = waited;
                double end = m->end[op] = start + s->dur[k];
                *before = m->stands[k] = op;
                if (end > idle_at) idle = op, idle_at = end;
            }
            now += s->call[i];
            of_call[i] = NO_OP;
            if (s->waits[i] == NO_OP) continue;
            int64_t op = s->waits[i] == EARLIER ? earlier : m->stands[s->waits[i]];
            if (op == NO_OP) continue;
            double back = (s->waits[i] == EARLIER ? earlier_at : m->end[op]) + s->tail[i];
            if (back > now) now = back, of_call[i] = op;
        }
        m->done[r + 1] = idle_at > now ? idle_at : now;
    }
    m->done_with = idle_at > now ? idle : NO_OP;
}

/* Fills met with the nodes of the path, last first; returns how many there are. call_of: the call that launches each op. */
static Py_ssize_t walk_back(const Schedule *s, int repeats, const Run *m, const int64_t *call_of, double until, int64_t *met) {
    int64_t op = m->done_with, at = s->calls * repeats - 1;
    double now = m->done[repeats];
    Py_ssize_t count = 0;
    while (op != BEGINNING && (op >= 0 || at >= 0) && now > until) {
        if (op >= 0) {
            int64_t k = op % s->ops, waited = m->waited[op];
            if (waited >= 0) {
                met[count++] = 2 * k + 1;
                now -= s->dur[k] + s->gap[k];
                op = waited;
            } else {
                met[count++] = 2 * k;
                now -= s->dur[k] + s->latency[k] + s->host[call_of[k]];
                at = op / s->ops * s->calls + call_of[k] - 1;
                op = NO_OP;
            }
        } else {
            int64_t i = at % s->calls;
            op = m->of_call[at];
            if (op != NO_OP) {
                met[count++] = -2 - 2 * i;
                now -= s->tail[i];
            } else {
                met[count++] = -1 - 2 * i;
                now -= s->call[i] + s->host[i];
                at--;
            }
        }
    }
    return count;
}

PyObject *longest(PyObject *Py_UNUSED(module), PyObject *args) {
    Schedule s;
    const double *was;
    int repeats;
    double until_repeat, beside;
    if (!taken(args, &s, &was, &repeats, &until_repeat, &beside)) return NULL;
    if (!(until_repeat >= 0 && until_repeat <= repeats)) return PyErr_Format(PyExc_ValueError, "not a repeat");
    size_t ops = (size_t)s.ops * (size_t)repeats, calls = (size_t)s.calls * (size_t)repeats, streams = (size_t)s.streams;
    int64_t *numbers = malloc((2 * ops + 2 * calls + 2 * (size_t)s.ops + streams + 1) * sizeof *numbers);
    Run m = {.end = malloc((ops + 1) * sizeof *m.end)};
    if (!numbers || !m.end) {
        free(numbers);
        free(m.end);
        return PyErr_NoMemory();
    }
    m.waited = numbers, m.of_call = m.waited + ops, m.stands = m.of_call + calls, m.last_on = m.stands + s.ops;
    int64_t *call_of = m.last_on + streams, *met = call_of + s.ops;
    for (Py_ssize_t i = 0; i < s.calls; i++)
        for (int64_t k = s.first_op[i]; k < s.first_op[i + 1]; k++) call_of[k] = i;
    forward(&s, repeats, &m);
    Py_ssize_t count = walk_back(&s, repeats, &m, call_of, m.done[(int)until_repeat] - 2 * beside, met);
    PyObject *list = floats(m.done, repeats + 1), *path = PyBytes_FromStringAndSize((const char *)met, count * (Py_ssize_t)sizeof *met);
    free(numbers);
    free(m.end);
    if (list && path) return Py_BuildValue("NN", list, path);
    Py_XDECREF(list);
    Py_XDECREF(path);
    return NULL;
}
