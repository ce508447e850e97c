/* PyTorch's caching allocator, simulated: `Allocator` of advisor/views/memory/allocator.py as `_in_python` of requests.py drives it, with the same results.

   A segment is a chain of blocks in order of their addresses, so neighbours merge without a search. Recorded segments are held to fill
   their range, and all sizes together to stay below a limit, so neither chains nor sums go wrong; other columns are left to Python. */

#include "allocator.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1, FIRST_BLOCKS = 64, MOST_EVENTS = INT32_MAX };
static const int64_t FARTHEST = INT64_C(1) << 60, EXPANDABLE_APART = INT64_C(1) << 50;

typedef struct {
    int64_t address, size, pool;
    Py_ssize_t before, after;
    bool free;
} Block;

typedef struct {
    Py_ssize_t *free; /* blocks, by size and address */
    size_t count, room;
    int64_t end;     /* of an expandable segment, -1 before it exists */
    Py_ssize_t last; /* its last block */
    bool large;
} Pool;

typedef struct {
    Settings settings;
    Block *blocks;
    size_t count, room;
    Py_ssize_t unused;
    Pool *pools;
    Py_ssize_t pool_count;
    int64_t reserved, next;
} Allocator;

/* Appends a block to a chain; NONE without memory. */
static Py_ssize_t block(Allocator *a, int64_t address, int64_t size, int64_t pool, Py_ssize_t before) {
    Py_ssize_t at = a->unused;
    if (at != NONE) {
        a->unused = a->blocks[at].after;
    } else {
        if (a->count == a->room) {
            size_t room = a->room ? 2 * a->room : FIRST_BLOCKS;
            Block *blocks = realloc(a->blocks, room * sizeof *blocks);
            if (!blocks) return NONE;
            a->blocks = blocks, a->room = room;
        }
        at = (Py_ssize_t)a->count++;
    }
    Py_ssize_t after = before == NONE ? NONE : a->blocks[before].after;
    a->blocks[at] = (Block){.address = address, .size = size, .pool = pool, .before = before, .after = after};
    if (before != NONE) a->blocks[before].after = at;
    if (after != NONE) a->blocks[after].before = at;
    return at;
}

static void unlinked(Allocator *a, Py_ssize_t at) {
    Block *b = a->blocks + at;
    if (b->before != NONE) a->blocks[b->before].after = b->after;
    if (b->after != NONE) a->blocks[b->after].before = b->before;
    b->after = a->unused;
    a->unused = at;
}

/* The first free block of a pool that is not before this size and address. */
static size_t place(const Allocator *a, const Pool *p, int64_t size, int64_t address) {
    size_t low = 0, high = p->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const Block *b = a->blocks + p->free[middle];
        if (b->size < size || (b->size == size && b->address < address)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool give(Allocator *a, Py_ssize_t at) {
    Block *b = a->blocks + at;
    Pool *p = a->pools + b->pool;
    if (p->count == p->room) {
        size_t room = p->room ? 2 * p->room : FIRST_BLOCKS;
        Py_ssize_t *larger = realloc(p->free, room * sizeof *larger);
        if (!larger) return false;
        p->free = larger, p->room = room;
    }
    size_t to = place(a, p, b->size, b->address);
    memmove(p->free + to + 1, p->free + to, (p->count - to) * sizeof *p->free);
    p->free[to] = at;
    p->count++;
    b->free = true;
    return true;
}

static void take_free(Allocator *a, Py_ssize_t at) {
    Block *b = a->blocks + at;
    Pool *p = a->pools + b->pool;
    size_t from = place(a, p, b->size, b->address);
    p->count--;
    memmove(p->free + from, p->free + from + 1, (p->count - from) * sizeof *p->free);
    b->free = false;
}

static bool fits(const Settings *s, int64_t have, int64_t size) {
    if (s->max_split < 0) return true;
    return size < s->max_split ? have < s->max_split : have < size + LARGE_SEGMENT;
}

/* The least multiple that is not below. */
static int64_t up(int64_t size, int64_t multiple) { return (size > 0 ? (size + multiple - 1) / multiple : size / multiple) * multiple; }

static int64_t segment_size(int64_t size) {
    if (size <= SMALL_REQUEST) return SMALL_SEGMENT;
    return size < MIN_LARGE ? LARGE_SEGMENT : up(size, ROUND_LARGE);
}

/* A block that is not free, of at least this size, from the driver. */
static Py_ssize_t grown(Allocator *a, int64_t size, int64_t pool) {
    Pool *p = a->pools + pool;
    if (!a->settings.expandable) {
        int64_t length = segment_size(size);
        a->next -= length;
        a->reserved += length;
        return block(a, a->next, length, pool, NONE);
    }
    if (p->end < 0) p->end = a->next -= EXPANDABLE_APART;
    bool joins = p->last != NONE && a->blocks[p->last].free;
    int64_t mapped = up(size - (joins ? a->blocks[p->last].size : 0), p->large ? LARGE_SEGMENT : SMALL_SEGMENT);
    if (joins) {
        take_free(a, p->last);
        a->blocks[p->last].size += mapped;
    } else {
        Py_ssize_t made = block(a, p->end, mapped, pool, p->last);
        if (made == NONE) return NONE;
        p->last = made;
    }
    p->end += mapped;
    a->reserved += mapped;
    return p->last;
}

/* The block that a request gets; NONE without memory. */
static Py_ssize_t alloc(Allocator *a, int64_t size, int64_t pool) {
    Pool *p = a->pools + pool;
    size_t at = place(a, p, size, NONE);
    if (at + 1 < p->count && a->blocks[p->free[at]].address + a->blocks[p->free[at]].size == p->end) at++;
    Py_ssize_t chosen;
    if (at < p->count && fits(&a->settings, a->blocks[p->free[at]].size, size)) {
        chosen = p->free[at];
        take_free(a, chosen);
    } else {
        chosen = grown(a, size, pool);
        if (chosen == NONE) return NONE;
    }
    int64_t have = a->blocks[chosen].size;
    if (splits(&a->settings, have, size)) {
        Py_ssize_t rest = block(a, a->blocks[chosen].address + size, have - size, pool, chosen);
        if (rest == NONE || !give(a, rest)) return NONE;
        a->blocks[chosen].size = size;
        if (p->last == chosen) p->last = rest;
    }
    return chosen;
}

static bool freed(Allocator *a, Py_ssize_t at) {
    Block *b = a->blocks + at;
    Pool *p = a->pools + b->pool;
    Py_ssize_t after = b->after, before = b->before;
    if (after != NONE && a->blocks[after].free) {
        take_free(a, after);
        b->size += a->blocks[after].size;
        if (p->last == after) p->last = at;
        unlinked(a, after);
    }
    if (before != NONE && a->blocks[before].free) {
        take_free(a, before);
        a->blocks[before].size += b->size;
        if (p->last == at) p->last = before;
        unlinked(a, at);
        at = before;
    }
    return give(a, at);
}

static void release_cached(Allocator *a) {
    for (Pool *p = a->pools; p < a->pools + a->pool_count; p++) {
        size_t kept = 0;
        for (size_t i = 0; i < p->count; i++) {
            Py_ssize_t at = p->free[i];
            Block *b = a->blocks + at;
            bool goes = a->settings.expandable ? at == p->last : b->before == NONE && b->after == NONE;
            if (!goes) {
                p->free[kept++] = at;
                continue;
            }
            a->reserved -= b->size;
            if (a->settings.expandable) p->end = b->address, p->last = b->before;
            b->free = false;
            unlinked(a, at);
        }
        p->count = kept;
    }
}

/* What is asked of the allocator. held: the block of each row, NONE of one that has none. */
typedef struct {
    Py_ssize_t events, releases, ends, births, rows, segments, taken, old;
    const int64_t *release, *end_at, *end_row, *born_at, *born_row, *size, *pool, *older;
    const int64_t *segment_at, *segment_size, *segment_pool, *segment_first, *taken_at, *taken_size, *taken_row;
    Py_ssize_t *held;
} Requests;

static bool adopt(Allocator *a, const Requests *r, Py_ssize_t segment) {
    int64_t at = r->segment_at[segment], end = at + r->segment_size[segment], pool = r->segment_pool[segment];
    Py_ssize_t last = NONE;
    a->reserved += r->segment_size[segment];
    for (int64_t i = r->segment_first[segment]; i < r->segment_first[segment + 1]; i++) {
        if (r->taken_at[i] > at && ((last = block(a, at, r->taken_at[i] - at, pool, last)) == NONE || !give(a, last))) return false;
        if ((last = block(a, r->taken_at[i], r->taken_size[i], pool, last)) == NONE) return false;
        r->held[r->taken_row[i]] = last;
        at = r->taken_at[i] + r->taken_size[i];
    }
    return at >= end || ((last = block(a, at, end - at, pool, last)) != NONE && give(a, last));
}

static bool run(Allocator *a, const Requests *r, int64_t *curve) {
    Py_ssize_t ends = 0, births = 0, releases = 0;
    for (Py_ssize_t i = 0; i < r->segments; i++)
        if (!adopt(a, r, i)) return false;
    for (Py_ssize_t i = 0; i < r->old; i++)
        if ((r->held[r->older[i]] = alloc(a, r->size[r->older[i]], r->pool[r->older[i]])) == NONE) return false;
    for (Py_ssize_t i = 0; i < r->events; i++) {
        for (; ends < r->ends && r->end_at[ends] <= i; ends++) {
            Py_ssize_t *held = r->held + r->end_row[ends];
            if (*held != NONE && !freed(a, *held)) return false;
            *held = NONE;
        }
        if (releases < r->releases && r->release[releases] <= i) {
            release_cached(a);
            releases++;
        }
        for (; births < r->births && r->born_at[births] <= i; births++) {
            int64_t row = r->born_row[births];
            if ((r->held[row] = alloc(a, r->size[row], r->pool[row])) == NONE) return false;
        }
        curve[i] = a->reserved;
    }
    return true;
}

/* Whether blocks in use lie in their segments in order, segments in order and away from the addresses of own ones. */
static bool apart(const Requests *r, int64_t below, int64_t *sum, int64_t limit) {
    int64_t reached = 0;
    for (Py_ssize_t s = 0; s < r->segments; s++) {
        if (r->segment_at[s] < reached || r->segment_at[s] > below || !added(sum, r->segment_size[s], limit)) return false;
        int64_t end = r->segment_at[s] + r->segment_size[s];
        if (end > below || r->segment_first[s] > r->segment_first[s + 1]) return false;
        reached = r->segment_at[s];
        for (int64_t i = r->segment_first[s]; i < r->segment_first[s + 1]; i++) {
            if (r->taken_at[i] < reached || r->taken_at[i] > end || r->taken_size[i] <= 0 || r->taken_size[i] > end - r->taken_at[i]) return false;
            reached = r->taken_at[i] + r->taken_size[i];
        }
        reached = end;
    }
    return true;
}

static bool sound(const Requests *r, Py_ssize_t pools, bool expandable) {
    int64_t sum = 0, limit = expandable ? EXPANDABLE_APART : FARTHEST / 2;
    if (!within(r->end_row, r->ends, 0, r->rows) || !within(r->born_row, r->births, 0, r->rows) || !within(r->older, r->old, 0, r->rows) ||
        !within(r->pool, r->rows, 0, pools) || !within(r->segment_pool, r->segments, 0, pools) || !within(r->taken_row, r->taken, 0, r->rows) ||
        !within(r->segment_first, r->segments + 1, 0, r->taken + 1) || (expandable && (r->segments || pools > FARTHEST / EXPANDABLE_APART / 2)))
        return false;
    for (Py_ssize_t i = 0; i < r->old; i++)
        if (r->size[r->older[i]] <= 0 || !added(&sum, r->size[r->older[i]], limit) || !added(&sum, LARGE_SEGMENT, limit)) return false;
    for (Py_ssize_t i = 0; i < r->births; i++)
        if (r->size[r->born_row[i]] <= 0 || !added(&sum, r->size[r->born_row[i]], limit) || !added(&sum, LARGE_SEGMENT, limit)) return false;
    return apart(r, FARTHEST / 2, &sum, limit);
}

static PyObject *simulated(Allocator *a, Requests *r, const char *large) {
    PyObject *curve = PyBytes_FromStringAndSize(NULL, r->events * (Py_ssize_t)sizeof(int64_t));
    if (!curve) return NULL;
    a->pools = calloc((size_t)a->pool_count + 1, sizeof *a->pools); /* empty, if there is no memory for what follows */
    r->held = malloc(((size_t)r->rows + 1) * sizeof *r->held);
    bool done = a->pools && r->held;
    for (Py_ssize_t i = 0; done && i < a->pool_count; i++) a->pools[i] = (Pool){.end = NONE, .last = NONE, .large = large[i]};
    for (Py_ssize_t i = 0; done && i < r->rows; i++) r->held[i] = NONE;
    done = done && run(a, r, (int64_t *)PyBytes_AsString(curve));
    for (Py_ssize_t i = 0; a->pools && i < a->pool_count; i++) free(a->pools[i].free);
    free(a->pools);
    free(a->blocks);
    free(r->held);
    if (done) return curve;
    Py_DECREF(curve);
    return PyErr_NoMemory();
}

PyObject *reserved(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *releases, *end_at, *end_row, *born_at, *born_row, *size, *pool, *older, *larges, *at, *length, *of_pool, *first, *taken_at, *taken_size, *taken_row;
    Allocator a = {.unused = NONE, .next = FARTHEST};
    Requests r = {0};
    if (!PyArg_ParseTuple(args, "nSSSSSSSSSSSSSSSSLp", &r.events, &releases, &end_at, &end_row, &born_at, &born_row, &size, &pool, &older, &larges, &at, &length,
                          &of_pool, &first, &taken_at, &taken_size, &taken_row, &a.settings.max_split, &a.settings.expandable))
        return NULL;
    const Py_ssize_t width = sizeof(int64_t);
    r.releases = PyBytes_Size(releases) / width, r.ends = PyBytes_Size(end_at) / width, r.births = PyBytes_Size(born_at) / width;
    r.rows = PyBytes_Size(size) / width, r.old = PyBytes_Size(older) / width, r.segments = PyBytes_Size(at) / width;
    r.taken = PyBytes_Size(taken_at) / width, a.pool_count = PyBytes_Size(larges);
    if (!(r.release = column(releases, r.releases, width)) || !(r.end_at = column(end_at, r.ends, width)) || !(r.end_row = column(end_row, r.ends, width)) ||
        !(r.born_at = column(born_at, r.births, width)) || !(r.born_row = column(born_row, r.births, width)) || !(r.size = column(size, r.rows, width)) ||
        !(r.pool = column(pool, r.rows, width)) || !(r.older = column(older, r.old, width)) || !(r.segment_at = column(at, r.segments, width)) ||
        !(r.segment_size = column(length, r.segments, width)) || !(r.segment_pool = column(of_pool, r.segments, width)) ||
        !(r.segment_first = column(first, r.segments + 1, width)) || !(r.taken_at = column(taken_at, r.taken, width)) ||
        !(r.taken_size = column(taken_size, r.taken, width)) || !(r.taken_row = column(taken_row, r.taken, width)))
        return NULL;
    if (r.events >= 0 && r.events < MOST_EVENTS && sound(&r, a.pool_count, a.settings.expandable)) return simulated(&a, &r, PyBytes_AsString(larges));
    return PyErr_Format(PyExc_ValueError, "not requests to an allocator");
}
