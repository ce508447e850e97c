#pragma once

#include "columns.h"

/* As advisor/views/memory/allocator.py has them, with the same names. */
enum { MIN_BLOCK = 512, SMALL_REQUEST = 1 << 20, SMALL_SEGMENT = 2 << 20, LARGE_SEGMENT = 20 << 20, MIN_LARGE = 10 << 20, ROUND_LARGE = 2 << 20 };

typedef struct {
    int64_t max_split;
    int expandable;
} Settings;

/* Whether a free block of `have` bytes is split after its first `take`. */
static inline bool splits(const Settings *s, int64_t have, int64_t take) {
    if (take <= SMALL_REQUEST || s->expandable) return have - take >= MIN_BLOCK;
    return (s->max_split < 0 || take < s->max_split) && have - take > SMALL_REQUEST;
}

/* Adds to a sum of sizes; false where one is negative or the sum reaches the limit: such numbers are left to Python. */
static inline bool added(int64_t *sum, int64_t size, int64_t limit) {
    if (size < 0 || size >= limit - *sum) return false;
    *sum += size;
    return true;
}

/* Bytes of each block, given the rounded requests and recorded events; ValueError where the columns are no events, or their sums are large. */
PyObject *block_sizes(PyObject *module, PyObject *args);

/* Bytes reserved after each event of a simulated allocator; ValueError as above. */
PyObject *reserved(PyObject *module, PyObject *args);
