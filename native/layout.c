/* Lays a device's events out block by block: `_sizes_in_python` of advisor/views/memory/layout.py, with the same results.

   Recorded events may contradict each other, so blocks are in tables by address, as there. All sizes together are held below a limit
   before anything is added, so that no sum overflows. */

#include "allocator.h"

#include <stdlib.h>

enum { ALLOC = 0, FREE_COMPLETED = 2, SEGMENT_ALLOC = 3, SEGMENT_FREE = 4, FIRST_SLOTS = 64 };
static const int64_t FARTHEST = INT64_C(1) << 62, MOST_BYTES = INT64_C(1) << 60;

/* A table of numbers by number: open addressing, at most half full. */
typedef struct {
    int64_t *keys, *values;
    bool *used;
    size_t slots, count;
} Table;

static size_t slot_of(const Table *t, int64_t key) {
    size_t at = (size_t)(((uint64_t)key * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & (t->slots - 1);  // Fibonacci hashing
    while (t->used[at] && t->keys[at] != key) at = (at + 1) & (t->slots - 1);
    return at;
}

static void drop(Table *t) {
    free(t->keys);
    free(t->values);
    free(t->used);
}

static bool put(Table *t, int64_t key, int64_t value);

static bool grow(Table *t) {
    Table larger = {.slots = t->slots ? 2 * t->slots : FIRST_SLOTS};
    larger.keys = malloc(larger.slots * sizeof *larger.keys);
    larger.values = malloc(larger.slots * sizeof *larger.values);
    larger.used = calloc(larger.slots, sizeof *larger.used);
    if (!larger.keys || !larger.values || !larger.used) {
        drop(&larger);
        return false;
    }
    for (size_t i = 0; i < t->slots; i++)
        if (t->used[i]) put(&larger, t->keys[i], t->values[i]);
    drop(t);
    *t = larger;
    return true;
}

static bool put(Table *t, int64_t key, int64_t value) {
    if (2 * t->count >= t->slots && !grow(t)) return false;
    size_t at = slot_of(t, key);
    t->count += !t->used[at];
    t->used[at] = true;
    t->keys[at] = key;
    t->values[at] = value;
    return true;
}

static const int64_t *get(const Table *t, int64_t key) {
    if (!t->count) return NULL;
    size_t at = slot_of(t, key);
    return t->used[at] ? t->values + at : NULL;
}

/* Whether the key was there; its value, if wanted. */
static bool pop(Table *t, int64_t key, int64_t *value) {
    const int64_t *found = get(t, key);
    if (!found) return false;
    if (value) *value = *found;
    t->count--;
    size_t at = (size_t)(found - t->values);
    t->used[at] = false;
    // What follows without a gap may have been pushed on by this one.
    for (size_t next = (at + 1) & (t->slots - 1); t->used[next]; next = (next + 1) & (t->slots - 1)) {
        int64_t moved = t->keys[next], with = t->values[next];
        t->used[next] = false;
        size_t to = slot_of(t, moved);
        t->used[to] = true;
        t->keys[to] = moved;
        t->values[to] = with;
    }
    return true;
}

typedef struct {
    Table free, by_end, held, segments;
    Settings settings;
} Layout;

static bool give_block(Layout *l, int64_t address, int64_t size) { return put(&l->free, address, size) && put(&l->by_end, address + size, address); }

/* Widens size to the bytes that an allocation at this address takes. */
static bool take(Layout *l, int64_t address, int64_t *size) {
    int64_t have;
    if (!pop(&l->free, address, &have)) return put(&l->held, address, *size);
    pop(&l->by_end, address + have, NULL);
    if (have > *size && splits(&l->settings, have, *size)) {
        if (!give_block(l, address + *size, have - *size)) return false;
        have = *size;
    }
    if (have > *size) *size = have;
    return put(&l->held, address, *size);
}

static bool give(Layout *l, int64_t address) {
    int64_t size, more;
    if (!pop(&l->held, address, &size)) return true;
    if (!get(&l->segments, address + size) && pop(&l->free, address + size, &more)) {
        pop(&l->by_end, address + size + more, NULL);
        size += more;
    }
    const int64_t *found = get(&l->by_end, address);
    if (found && get(&l->free, *found) && !get(&l->segments, address)) {
        int64_t before = *found;
        pop(&l->by_end, address, NULL);
        pop(&l->free, before, &more);
        size += more;
        address = before;
    }
    return give_block(l, address, size);
}

static bool lay_out(Layout *l, Py_ssize_t events, const char *action, const int64_t *address, const int64_t *length, int64_t *size) {
    for (Py_ssize_t i = 0; i < events; i++) {
        bool done = true;
        int64_t had;
        if (action[i] == ALLOC) {
            done = take(l, address[i], size++);
        } else if (action[i] == FREE_COMPLETED) {
            done = give(l, address[i]);
        } else if (action[i] == SEGMENT_ALLOC) {
            done = put(&l->segments, address[i], 0) && give_block(l, address[i], length[i]);
        } else if (action[i] == SEGMENT_FREE) {
            pop(&l->segments, address[i], NULL);
            if (pop(&l->free, address[i], &had)) pop(&l->by_end, address[i] + had, NULL);
        }
        if (!done) return false;
    }
    return true;
}

/* Whether the rows are as many as the allocations, and no sum of sizes reaches the limit. */
static bool sound(Py_ssize_t events, const char *action, const int64_t *address, const int64_t *length, Py_ssize_t born, const int64_t *size, Py_ssize_t rows) {
    int64_t sum = 0;
    if (!within(address, events, -FARTHEST, FARTHEST)) return false;
    for (Py_ssize_t i = 0; i < events; i++) {
        if (action[i] == ALLOC) born--;
        if (action[i] == SEGMENT_ALLOC && !added(&sum, length[i], MOST_BYTES)) return false;
    }
    for (Py_ssize_t i = 0; i < rows; i++)
        if (!added(&sum, size[i], MOST_BYTES)) return false;
    return born == 0;
}

PyObject *block_sizes(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *actions, *addresses, *lengths, *rounded, *olds, *free_at, *free_sizes, *starts;
    Layout l = {.free = {0}};
    if (!PyArg_ParseTuple(args, "SSSSSSSSLp", &actions, &addresses, &lengths, &rounded, &olds, &free_at, &free_sizes, &starts, &l.settings.max_split,
                          &l.settings.expandable))
        return NULL;
    const Py_ssize_t width = sizeof(int64_t), events = PyBytes_Size(actions), rows = PyBytes_Size(rounded) / width, older = PyBytes_Size(olds) / width,
                     gaps = PyBytes_Size(free_at) / width, segments = PyBytes_Size(starts) / width;
    const char *action = column(actions, events, 1);
    const int64_t *address = column(addresses, events, width), *length = column(lengths, events, width), *size = column(rounded, rows, width),
                  *old = column(olds, older, width), *gap = column(free_at, gaps, width), *gap_size = column(free_sizes, gaps, width),
                  *start = column(starts, segments, width);
    if (!action || !address || !length || !size || !old || !gap || !gap_size || !start) return NULL;
    int64_t sum = 0;
    bool small = within(old, older, -FARTHEST, FARTHEST) && within(gap, gaps, -FARTHEST, FARTHEST) && sound(events, action, address, length, rows - older, size, rows);
    for (Py_ssize_t i = 0; small && i < gaps; i++) small = added(&sum, gap_size[i], MOST_BYTES);
    if (!small) return PyErr_Format(PyExc_ValueError, "not events of an allocator");
    PyObject *made = PyBytes_FromStringAndSize((const char *)size, rows * width);
    int64_t *taken = made ? (int64_t *)PyBytes_AsString(made) : NULL;
    bool done = made != NULL;
    for (Py_ssize_t i = 0; done && i < segments; i++) done = put(&l.segments, start[i], 0);
    for (Py_ssize_t i = 0; done && i < gaps; i++) done = give_block(&l, gap[i], gap_size[i]);
    for (Py_ssize_t i = 0; done && i < older; i++) done = put(&l.held, old[i], size[i]);
    done = done && lay_out(&l, events, action, address, length, taken + older);
    drop(&l.free);
    drop(&l.by_end);
    drop(&l.held);
    drop(&l.segments);
    if (done) return made;
    Py_XDECREF(made);
    return PyErr_NoMemory();
}
