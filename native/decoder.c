/* Decodes a piece of a Kineto trace, `{…}, {…}`, straight into columns of the fields that are asked for.

   It takes only what is regular: JSON to the letter, each key once, each field of the type that its table expects. At the first
   thing that is not it gives the whole piece back (None), and the reader in Python, which knows every leniency, decodes that piece.
   It knows no key and no table of its own: the schema comes from the caller (advisor/sources/kineto/native.py).

   One pass, nothing recursive, no byte read outside of the piece. All memory is scratch of the Decoder that the next piece uses again.

   The pass touches no object of Python, so it runs without the interpreter's lock: threads decode side by side, each with a Decoder. */

#include "allocator.h"
#include "replay.h"
#include "wire.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

_Static_assert(sizeof(size_t) == 8 && FLT_EVAL_METHOD == 0, "64 bits, and floats that are rounded as Python's are");

enum { MAX_FIELDS = 64, MAX_TABLES = 16, MAX_ROUTES = 8, MAX_DEPTH = 63, KEY_SLOTS = 256, MAX_NUMBER = 63 };
enum { MAX_GAPS = 256, GAP_BYTES = 48, FOLLOWERS = 4 };
enum { MAX_PROBES = 512 };            /* texts that all meet in one place were made to */
enum { KEPT_SLOTS = 1 << 16 };        /* a larger table of texts is not cleared for each piece, but made anew when it is needed */
enum { EVENT, ARGS };                 /* where a field stands */
enum { NO_TABLE = -1, REFUSED = -2 }; /* of a category: its events are counted alone, or never taken */

/* ---- what is to be read: filled once ---- */

/* Kinds of fields. The first five are the event's own and are read by name; each of the others becomes a column:
   i integer, f float, t text, e text that may be a number where nobody asks, l text or number as text, r any value as its JSON text. */
enum { PHASE = 'P', CATEGORY = 'C', STARTS = 'S', LASTS = 'D', ARGUMENTS = 'A' };
enum { INTEGER = 'i', FLOAT = 'f', TEXT = 't', EITHER = 'e', LABEL = 'l', RAW = 'r' };

typedef struct {
    char *key;
    size_t length;
    char kind;
} Field;

/* What stands between two values of an object, its comma, blanks, key and colon, and the gaps that followed it before: writers repeat
   themselves, so that one comparison mostly does for a key. */
typedef struct {
    char text[GAP_BYTES];
    int length, field; /* field: -1 of a key that nobody asked for */
    uint8_t followers[FOLLOWERS];
    uint8_t oldest;
} Gap;

typedef struct {
    Field fields[MAX_FIELDS];
    int count;
    uint8_t slots[KEY_SLOTS]; /* of the hash of a key: 1 + its field */
    Gap gaps[MAX_GAPS];       /* the first is the start of an object */
    int gap_count;
} Keys;

typedef struct {
    char phase;
    char *name;
    size_t length;
    int table;
    bool of_thread; /* only where pid and tid are integers */
} Route;

typedef struct {
    char *name;
    size_t length;
    int table;
} Category;

/* ---- what was read: scratch ---- */

typedef struct {
    const char *at;
    size_t length;
} Span;

typedef struct {
    char kind;
    bool used; /* whether a value was written; where none was the column is not returned */
    union {
        int64_t *whole;
        double *real;
        int32_t *code;
        void *any;
    };
    Span *texts; /* of each code */
    size_t text_count, text_capacity;
} Column;

typedef struct {
    uint64_t mask[2]; /* fields that it takes */
    Column columns[2][MAX_FIELDS];
    bool timed, lasting;
    int64_t *start, *duration;
    size_t rows, capacity;
    size_t met; /* tables are returned in the order in which their first row was met */
} Table;

typedef struct {
    uint64_t hash;
    const Column *column; /* NULL where it is free */
    int32_t code;
} Interned;

typedef enum { NUL, WHOLE, UNSIGNED, REAL, STRING, JSON, NANOSECONDS } Type; /* NANOSECONDS: of a time with a point, whole */

typedef struct {
    Span span; /* of a string what is between the quotes, else all of the value */
    Type type;
    bool escaped;
    int64_t whole; /* UNSIGNED: wrapped */
    double real;
} Value;

typedef struct {
    int table;
    size_t events; /* where it has no table */
} Counted;

typedef struct Block {
    struct Block *next;
    size_t used, size;
    char bytes[];
} Block;

typedef struct {
    PyObject_HEAD
    Keys keys[2];
    Table tables[MAX_TABLES];
    int table_count;
    Route routes[MAX_ROUTES];
    int route_count;
    char refused[MAX_FIELDS]; /* phases of which no event is taken */
    Category *categories;
    int category_count;
    double exact_below, valid_below;
    int64_t longest;

    atomic_flag busy;
    PyThreadState *unlocked; /* of the thread that decodes, while it is without the lock */
    Value values[2][MAX_FIELDS];
    uint64_t seen[2];
    Column category;     /* distinct categories of spans */
    int32_t latest;      /* the last one's */
    Counted *counted;    /* of each */
    size_t counted_capacity;
    Interned *interned;
    size_t interned_slots, interned_count;
    Block *blocks; /* unescaped strings */
    size_t events, samples, bad_durations, met; /* samples: of counters, which it only counts */
    bool no_memory;
} Decoder;

/* ---- JSON, to the letter: each returns where it ends, NULL where it is anything else ---- */

static inline const char *blank(const char *p, const char *end) {
    const uint64_t blanks = 1ull << ' ' | 1ull << '\n' | 1ull << '\r' | 1ull << '\t';
    while (p < end && (unsigned char)*p <= ' ' && (blanks >> *p & 1)) p++;
    return p;
}

static inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

static inline int hex(char c) {
    if (is_digit(c)) return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The character of `uXXXX` at p, -1 where it is none or half of a pair. */
static int unicode_escape(const char *p, const char *end) {
    int code = 0;
    if (end - p < 5) return -1;
    for (int i = 1; i < 5; i++) {
        int digit = hex(p[i]);
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code >= 0xD800 && code <= 0xDFFF ? -1 : code;
}

typedef struct {
    bool escaped, wide; /* wide: holds bytes beyond ASCII */
} Marks;

/* From after the opening quote to the closing one. */
static inline const char *string_end(const char *p, const char *end, Marks *marks) {
    for (;;) {
#if defined(__SSE2__)
        while (end - p >= 16) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)p);
            __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
            __m128i slash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
            __m128i control = _mm_cmpeq_epi8(_mm_max_epu8(bytes, _mm_set1_epi8(0x1f)), _mm_set1_epi8(0x1f));
            unsigned stops = (unsigned)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, slash), control));
            unsigned wide = (unsigned)_mm_movemask_epi8(bytes);
            if (stops == 0) {
                marks->wide |= wide != 0;
                p += 16;
                continue;
            }
            unsigned before = (unsigned)__builtin_ctz(stops);
            marks->wide |= (wide & ((1u << before) - 1)) != 0;
            p += before;
            break;
        }
#endif
        while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20) {
            marks->wide |= (unsigned char)*p >= 0x80;
            p++;
        }
        if (p == end || (unsigned char)*p < 0x20) return NULL;
        if (*p == '"') return p;
        marks->escaped = true;
        if (end - p < 2) return NULL;
        if (p[1] == 'u') {
            if (unicode_escape(p + 1, end) < 0) return NULL;
            p += 6;
        } else {
            if (!memchr("\"\\/bfnrt", p[1], 8)) return NULL;
            p += 2;
        }
    }
}

static bool is_utf8(const char *text, size_t length) {
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    while (p < end) {
        unsigned char c = *p++;
        if (c < 0x80) continue;
        int more = c >= 0xC2 && c <= 0xDF ? 1 : (c & 0xF0) == 0xE0 ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
        if (more == 0 || end - p < more) return false;
        unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        if (*p < low || *p > high) return false;
        while (++p, --more > 0)
            if ((*p & 0xC0) != 0x80) return false;
    }
    return true;
}

/* Past a string whose text nobody takes; from its opening quote. */
static inline const char *string_past(const char *p, const char *end) {
    Marks marks = {false, false};
    const char *stop = string_end(p + 1, end, &marks);
    return stop && (!marks.wide || is_utf8(p + 1, (size_t)(stop - p - 1))) ? stop + 1 : NULL;
}

static const char *number_end(const char *p, const char *end) {
    if (p < end && *p == '-') p++;
    if (p == end || !is_digit(*p)) return NULL;
    if (*p == '0')
        p++;
    else
        while (p < end && is_digit(*p)) p++;
    if (p < end && *p == '.') {
        if (++p == end || !is_digit(*p)) return NULL;
        while (p < end && is_digit(*p)) p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        if (++p < end && (*p == '+' || *p == '-')) p++;
        if (p == end || !is_digit(*p)) return NULL;
        while (p < end && is_digit(*p)) p++;
    }
    return p;
}

static const char *literal(const char *p, const char *end, const char *word, ptrdiff_t length) {
    return end - p >= length && memcmp(p, word, (size_t)length) == 0 ? p + length : NULL;
}

static const char *scalar_end(const char *p, const char *end) {
    switch (*p) {
    case '"':
        return string_past(p, end);
    case 't':
        return literal(p, end, "true", 4);
    case 'f':
        return literal(p, end, "false", 5);
    case 'n':
        return literal(p, end, "null", 4);
    default:
        return number_end(p, end);
    }
}

/* The end of any value. */
static const char *value_end(const char *p, const char *end) {
    uint64_t objects = 0; /* a bit for each bracket that is open: whether it is a brace */
    int depth = 0;
    for (;;) {
        if (p == end) return NULL;
        if (*p == '[' || *p == '{') {
            bool object = *p == '{';
            if (++depth > MAX_DEPTH) return NULL;
            objects = objects << 1 | object;
            p = blank(p + 1, end);
            if (p == end) return NULL;
            if (*p != (object ? '}' : ']')) goto member;
        } else {
            p = scalar_end(p, end);
            if (!p) return NULL;
            if (depth == 0) return p;
            p = blank(p, end);
            if (p == end) return NULL;
        }
        while (*p != ',') {
            if (*p != (objects & 1 ? '}' : ']')) return NULL;
            objects >>= 1;
            p++;
            if (--depth == 0) return p;
            p = blank(p, end);
            if (p == end) return NULL;
        }
        p = blank(p + 1, end);
    member:
        if (objects & 1) {
            if (p == end || *p != '"' || !(p = string_past(p, end))) return NULL;
            p = blank(p, end);
            if (p == end || *p != ':') return NULL;
            p = blank(p + 1, end);
        }
    }
}

enum { MOST_DIGITS = 19, MOST_TENS = 18 }; /* 64 bits hold so many digits, and 128 their product with such a power of ten */
static const uint64_t TENS[MOST_TENS + 1] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000, 1000000000000, 10000000000000,
    100000000000000, 1000000000000000, 10000000000000000, 100000000000000000, 1000000000000000000,
};
enum { MOST_POWERS = 22 }; /* a float holds them exactly */
static const double POWERS[MOST_POWERS + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                               1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* digits × 10^scale as the nearest float, of more digits than 53 bits hold. Integers of 128 bits hold the product. They hold of the
   quotient at least 57 bits, of which the last also says whether anything is left: they are rounded once, as it would be. */
static double nearest(uint64_t digits, int scale) {
    if (scale >= 0) return (double)((unsigned __int128)digits * TENS[scale]);
    unsigned __int128 whole = (unsigned __int128)digits << 64;
    unsigned __int128 quotient = whole / TENS[-scale];
    quotient |= quotient * TENS[-scale] != whole;
    return (double)quotient / 18446744073709551616.0;
}

/* Any other number as the nearest float, by Python, which needs its lock: of more digits than 64 bits hold, or of a large exponent. */
static bool by_python(Decoder *self, Value *value) {
    char text[MAX_NUMBER + 1];
    if (value->span.length > MAX_NUMBER) return false;
    memcpy(text, value->span.at, value->span.length);
    text[value->span.length] = 0;
    PyEval_RestoreThread(self->unlocked);
    value->real = PyOS_string_to_double(text, NULL, NULL);
    if (PyErr_Occurred()) PyErr_Clear(), value->real = HUGE_VAL;
    self->unlocked = PyEval_SaveThread();
    return isfinite(value->real);
}

/* Past the digits at p, which are appended to `number` (modulo 2^64), eight at once where that many bytes are there. */
static inline const char *digits_past(const char *p, const char *end, uint64_t *number) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - p >= 8) {
        uint64_t text;
        memcpy(&text, p, 8);
        text ^= 0x3030303030303030u; /* digits become 0 to 9; of another byte, the highest bit of `other` is set */
        uint64_t other = ((text & 0x7F7F7F7F7F7F7F7Fu) + 0x7676767676767676u) | text;
        other &= 0x8080808080808080u;
        int count = other ? __builtin_ctzll(other) >> 3 : 8;
        if (count == 0) return p;
        text <<= 64 - 8 * count; /* zeros in front instead of what follows */
        text = (text * 10 + (text >> 8)) & 0x00FF00FF00FF00FFu;
        text = (text * 100 + (text >> 16)) & 0x0000FFFF0000FFFFu;
        text = (text * 10000 + (text >> 32)) & 0xFFFFFFFFu;
        *number = *number * TENS[count] + text;
        p += count;
        if (count < 8) return p;
    }
#endif
    while (p < end && is_digit(*p)) *number = *number * 10 + (uint64_t)(*p++ - '0');
    return p;
}

/* Past an exponent, which is added to `scale`. */
static const char *exponent_past(const char *p, const char *end, ptrdiff_t *scale) {
    bool negative = ++p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    const char *first = p;
    ptrdiff_t exponent = 0;
    for (; p < end && is_digit(*p); p++)
        if (exponent < 10000) exponent = exponent * 10 + (*p - '0'); /* beyond, all are as large */
    *scale += negative ? -exponent : exponent;
    return p > first ? p : NULL;
}

/* A number; of a time in microseconds, also its nanoseconds where they are whole. */
static const char *number(Decoder *self, const char *p, const char *end, Value *value, bool time) {
    const char *start = p;
    uint64_t digits = 0;
    bool negative = *p == '-';
    p += negative;
    const char *first = p;
    p = digits_past(p, end, &digits);
    ptrdiff_t count = p - first;
    if (count == 0 || (*first == '0' && count > 1)) return NULL;
    if (p == end || (*p != '.' && *p != 'e' && *p != 'E')) {
        if (count > MOST_DIGITS && (count > MOST_DIGITS + 1 || *first != '1' || digits < (uint64_t)1 << 63)) return NULL; /* 64 bits do not hold it */
        value->span = (Span){start, (size_t)(p - start)};
        if (negative) {
            if (digits == 0 || digits > (uint64_t)1 << 63) return NULL; /* -0 is another text than 0 */
            value->whole = digits == (uint64_t)1 << 63 ? INT64_MIN : -(int64_t)digits;
            value->type = WHOLE;
        } else {
            value->type = digits > INT64_MAX ? UNSIGNED : WHOLE;
            memcpy(&value->whole, &digits, sizeof digits);
        }
        return p;
    }
    value->type = REAL;
    ptrdiff_t decimals = 0;
    if (*p == '.') {
        const char *point = p + 1;
        p = digits_past(point, end, &digits);
        decimals = p - point;
        if (decimals == 0) return NULL;
    }
    bool exponent = p < end && (*p == 'e' || *p == 'E'), exact = digits <= (uint64_t)1 << 53;
    ptrdiff_t scale = -decimals;
    if (exponent && !(p = exponent_past(p, end, &scale))) return NULL;
    value->span = (Span){start, (size_t)(p - start)};
    if (count + decimals > MOST_DIGITS) return by_python(self, value) ? p : NULL;
    if (time && !exponent && exact && decimals <= 3) {
        value->type = NANOSECONDS;
        value->whole = (int64_t)(digits * TENS[3 - decimals]);
        if (negative) value->whole = -value->whole;
        return p;
    }
    if (exact && scale < 0 && scale >= -MOST_POWERS)
        value->real = (double)digits / POWERS[-scale]; /* both are exact, so the quotient is rounded once */
    else if (exact && scale >= 0 && scale <= MOST_POWERS)
        value->real = (double)digits * POWERS[scale];
    else if (!exact && scale >= -MOST_TENS && scale <= MOST_TENS)
        value->real = nearest(digits, (int)scale);
    else
        return by_python(self, value) ? p : NULL;
    if (negative) value->real = -value->real;
    return p;
}

/* ---- memory ---- */

static inline uint64_t eight_bytes(const char *text) {
    uint64_t bytes;
    memcpy(&bytes, text, 8);
    return bytes;
}

static inline uint64_t folded(uint64_t one, uint64_t other) {
    unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_of(const char *text, size_t length) {
    const uint64_t odd = 0x9E3779B97F4A7C15u;
    uint64_t hash = ~(length * odd), first = 0, last = 0;
    for (; length > 16; length -= 16, text += 16) hash = folded(eight_bytes(text) ^ odd, eight_bytes(text + 8) ^ hash);
    if (length >= 8) {
        first = eight_bytes(text);
        last = eight_bytes(text + length - 8);
    } else {
        for (size_t i = 0; i < length; i++) first = first << 8 | (unsigned char)text[i];
    }
    return folded(first ^ odd, last ^ hash);
}

static bool grow(void **memory, size_t *capacity, size_t needed, size_t size) {
    if (needed <= *capacity) return true;
    size_t wanted = *capacity ? *capacity : 64;
    while (wanted < needed) wanted *= 2;
    void *grown = realloc(*memory, wanted * size);
    if (!grown) return false;
    *memory = grown;
    *capacity = wanted;
    return true;
}

static char *room(Decoder *self, size_t size) {
    if (!self->blocks || self->blocks->size - self->blocks->used < size) {
        size_t wanted = size > 1 << 16 ? size : 1 << 16;
        Block *block = malloc(sizeof *block + wanted);
        if (!block) return NULL;
        *block = (Block){self->blocks, 0, wanted};
        self->blocks = block;
    }
    char *at = self->blocks->bytes + self->blocks->used;
    self->blocks->used += size;
    return at;
}

/* A string without its escapes, which string_end has looked at. */
static bool unescape(Decoder *self, Value *value) {
    char *made = room(self, value->span.length), *to = made;
    if (!made) return false;
    const char *p = value->span.at, *end = p + value->span.length;
    while (p < end) {
        if (*p != '\\') {
            *to++ = *p++;
            continue;
        }
        if (p[1] == 'u') {
            int code = unicode_escape(p + 1, end);
            if (code < 0x80) {
                *to++ = (char)code;
            } else if (code < 0x800) {
                *to++ = (char)(0xC0 | code >> 6);
                *to++ = (char)(0x80 | (code & 0x3F));
            } else {
                *to++ = (char)(0xE0 | code >> 12);
                *to++ = (char)(0x80 | (code >> 6 & 0x3F));
                *to++ = (char)(0x80 | (code & 0x3F));
            }
            p += 6;
        } else {
            static const char LETTERS[] = "bfnrt", MEANT[] = "\b\f\n\r\t";
            const char *letter = strchr(LETTERS, p[1]);
            *to++ = letter ? MEANT[letter - LETTERS] : p[1];
            p += 2;
        }
    }
    value->span = (Span){made, (size_t)(to - made)};
    value->escaped = false;
    return true;
}

static bool rehash(Decoder *self) {
    size_t slots = self->interned_slots ? 2 * self->interned_slots : 4096;
    Interned *made = calloc(slots, sizeof *made);
    if (!made) return false;
    for (size_t i = 0; i < self->interned_slots; i++) {
        if (!self->interned[i].column) continue;
        size_t at = self->interned[i].hash & (slots - 1);
        while (made[at].column) at = (at + 1) & (slots - 1);
        made[at] = self->interned[i];
    }
    free(self->interned);
    self->interned = made;
    self->interned_slots = slots;
    return true;
}

/* The number of a text in its column, in the order in which texts are first met; -1 where it gets none. */
static int32_t intern(Decoder *self, Column *column, Span text) {
    if (2 * self->interned_count >= self->interned_slots && !rehash(self)) return self->no_memory = true, -1;
    uint64_t hash = hash_of(text.at, text.length) ^ ((uintptr_t)column >> 3) * 0x9E3779B97F4A7C15u;
    size_t at = hash & (self->interned_slots - 1);
    int probes = 0;
    for (const Interned *one; (one = &self->interned[at])->column; at = (at + 1) & (self->interned_slots - 1)) {
        if (one->hash == hash && one->column == column) {
            Span known = column->texts[one->code];
            if (known.length == text.length && memcmp(known.at, text.at, text.length) == 0) return one->code;
        }
        if (++probes == MAX_PROBES) return -1;
    }
    if (column->text_count >= INT32_MAX) return -1;
    if (!grow((void **)&column->texts, &column->text_capacity, column->text_count + 1, sizeof *column->texts)) return self->no_memory = true, -1;
    int32_t code = (int32_t)column->text_count++;
    column->texts[code] = text;
    self->interned[at] = (Interned){hash, column, code};
    self->interned_count++;
    return code;
}

/* ---- events to rows ---- */

static size_t width(char kind) { return kind == INTEGER || kind == FLOAT ? 8 : 4; }

/* "Not recorded": the smallest integer, NaN, or code -1. */
static void fill(Column *column, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        if (column->kind == INTEGER)
            column->whole[i] = INT64_MIN;
        else if (column->kind == FLOAT)
            column->real[i] = NAN;
        else
            column->code[i] = -1;
    }
}

static bool make_room(Table *table) {
    if (table->rows < table->capacity) return true;
    size_t capacity = table->capacity ? 2 * table->capacity : 1024;
    void *grown;
    if (!(grown = realloc(table->start, capacity * 8))) return false;
    table->start = grown;
    if (!(grown = realloc(table->duration, capacity * 8))) return false;
    table->duration = grown;
    for (int level = 0; level < 2; level++) {
        for (int i = 0; i < MAX_FIELDS; i++) {
            Column *column = &table->columns[level][i];
            if (!(table->mask[level] >> i & 1)) continue;
            if (!(grown = realloc(column->any, capacity * width(column->kind)))) return false;
            column->any = grown;
            if (column->used) fill(column, table->capacity, capacity);
        }
    }
    table->capacity = capacity;
    return true;
}

/* Write a value into the row; false where this column does not take it. */
static bool put(Decoder *self, Table *table, Column *column, Value *value, size_t row) {
    if (value->type == NUL) return true;
    if (!column->used) {
        fill(column, 0, table->capacity);
        column->used = true;
    }
    switch (column->kind) {
    case INTEGER:
        column->whole[row] = value->whole;
        return (value->type == WHOLE && value->whole != INT64_MIN) || (value->type == UNSIGNED && value->whole != INT64_MIN);
    case FLOAT:
        column->real[row] = value->type == WHOLE ? (double)value->whole : value->real;
        return value->type == WHOLE || value->type == REAL;
    case LABEL:
        if (value->type != STRING && value->type != WHOLE && value->type != UNSIGNED) return false;
        break;
    case RAW:
        break;
    default:
        if (value->type != STRING) return false;
    }
    if (value->escaped && !unescape(self, value)) {
        self->no_memory = true;
        return false;
    }
    if (value->span.length == 0) return true; /* as if it were not recorded */
    column->code[row] = intern(self, column, value->span);
    return column->code[row] >= 0;
}

/* Nanoseconds of microseconds exactly as advisor.sources.kineto.columns.nanoseconds rounds them; false where it would look twice.
   Below `exact_below` a float is nearer to its microseconds than half a nanosecond: what has three decimals rounds to them. */
static inline bool nanoseconds(const Decoder *self, const Value *value, int64_t *ns) {
    switch (value->type) {
    case NANOSECONDS:
        *ns = value->whole;
        return fabs((double)value->whole) < self->exact_below * 1000;
    case WHOLE:
        *ns = (int64_t)((uint64_t)value->whole * 1000);
        return fabs((double)value->whole) < self->valid_below;
    case REAL:
        if (!(fabs(value->real) < self->exact_below)) return false;
        double whole = floor(value->real), fraction = value->real - whole;
        *ns = (int64_t)whole * 1000 + (int64_t)rint(fraction * 1000);
        return true;
    default:
        return false;
    }
}

enum { PH, CAT, TS, DUR, NAME, PID, TID }; /* the event's own fields stand first in the schema, in this order */

static bool add_row(Decoder *self, Table *table) {
    if (!make_room(table)) {
        self->no_memory = true;
        return false;
    }
    size_t row = table->rows;
    if (table->timed && (!(self->seen[EVENT] >> TS & 1) || !nanoseconds(self, &self->values[EVENT][TS], &table->start[row]))) return false;
    if (table->lasting) {
        int64_t duration = 0;
        if ((self->seen[EVENT] >> DUR & 1) && !nanoseconds(self, &self->values[EVENT][DUR], &duration)) return false;
        if (duration < 0 || duration > self->longest) {
            self->bad_durations++;
            duration = 0;
        }
        table->duration[row] = duration;
    }
    for (int level = 0; level < 2; level++) {
        for (uint64_t left = table->mask[level] & self->seen[level]; left; left &= left - 1) {
            int field = __builtin_ctzll(left);
            if (!put(self, table, &table->columns[level][field], &self->values[level][field], row)) return false;
        }
    }
    if (table->rows++ == 0) table->met = ++self->met;
    return true;
}

static bool is(const Value *value, const char *text, size_t length) {
    return value->type == STRING && !value->escaped && value->span.length == length && memcmp(value->span.at, text, length) == 0;
}

static bool whole_thread(const Decoder *self) {
    for (int field = PID; field <= TID; field++) {
        Type type = self->values[EVENT][field].type;
        if (!(self->seen[EVENT] >> field & 1) || (type != WHOLE && type != UNSIGNED)) return false;
    }
    return true;
}

static bool add_span(Decoder *self) {
    Value *value = &self->values[EVENT][CAT];
    if (!(self->seen[EVENT] >> CAT & 1) || value->type != STRING || value->escaped) return false;
    size_t known = self->category.text_count;
    int32_t code = self->latest;
    if ((size_t)code >= known || !is(value, self->category.texts[code].at, self->category.texts[code].length)) {
        code = intern(self, &self->category, value->span);
        if (code < 0) return false;
        self->latest = code;
    }
    if ((size_t)code == known) {
        if (!grow((void **)&self->counted, &self->counted_capacity, known + 1, sizeof *self->counted)) return !(self->no_memory = true);
        self->counted[code] = (Counted){NO_TABLE, 0};
        for (int i = 0; i < self->category_count; i++)
            if (is(value, self->categories[i].name, self->categories[i].length)) self->counted[code].table = self->categories[i].table;
    }
    int table = self->counted[code].table;
    if (table == NO_TABLE) {
        self->counted[code].events++;
        return true;
    }
    return table != REFUSED && add_row(self, &self->tables[table]);
}

static bool add_event(Decoder *self) {
    const Value *phase = &self->values[EVENT][PH];
    self->events++;
    if (!(self->seen[EVENT] >> PH & 1) || phase->type != STRING || phase->escaped || phase->span.length != 1) return false;
    char ph = phase->span.at[0];
    if (ph == 'X') return add_span(self);
    if (strchr(self->refused, ph)) return false;
    if (ph == 'C') self->samples++;
    for (int i = 0; i < self->route_count; i++) {
        const Route *route = &self->routes[i];
        const Value *name = &self->values[EVENT][NAME];
        if (route->phase != ph || !(self->seen[EVENT] >> NAME & 1)) continue;
        if (name->escaped) return false;
        if (is(name, route->name, route->length) && (!route->of_thread || whole_thread(self))) return add_row(self, &self->tables[route->table]);
    }
    return true;
}

/* ---- text to events ---- */

static int field_of(const Keys *keys, const char *key, size_t length) {
    for (uint64_t at = hash_of(key, length) % KEY_SLOTS;; at = (at + 1) % KEY_SLOTS) {
        int field = keys->slots[at] - 1;
        if (field < 0 || (keys->fields[field].length == length && memcmp(keys->fields[field].key, key, length) == 0)) return field;
    }
}

/* The value of a field, of a type that the reader in Python takes for it. */
static const char *take(Decoder *self, const char *p, const char *end, char kind, Value *value) {
    value->escaped = false;
    if (kind == RAW) {
        const char *stop = value_end(p, end);
        if (!stop) return NULL;
        value->span = (Span){p, (size_t)(stop - p)};
        value->type = JSON;
        return stop;
    }
    if (*p == '"') {
        Marks marks = {false, false};
        const char *stop = string_end(p + 1, end, &marks);
        if (!stop || kind == STARTS || kind == LASTS) return NULL;
        value->span = (Span){p + 1, (size_t)(stop - p - 1)};
        value->type = STRING;
        value->escaped = marks.escaped;
        if (marks.wide && !is_utf8(value->span.at, value->span.length)) return NULL;
        return stop + 1;
    }
    if (*p == 'n') {
        value->type = NUL;
        if (kind == PHASE || kind == STARTS || kind == LASTS) return NULL;
        return literal(p, end, "null", 4);
    }
    if (*p != '-' && !is_digit(*p)) return NULL;
    p = number(self, p, end, value, kind == STARTS || kind == LASTS);
    if (!p || kind == TEXT || kind == PHASE || kind == CATEGORY) return NULL;
    return kind == EITHER && value->type == REAL ? NULL : p;
}

static inline bool same(const char *p, const Gap *gap) {
#if defined(__SSE2__)
    for (int at = 0; at < GAP_BYTES; at += 16) {
        __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(p + at)), _mm_loadu_si128((const __m128i *)(gap->text + at)));
        unsigned differ = (unsigned)_mm_movemask_epi8(equal) ^ 0xFFFF;
        if (gap->length - at <= 16) return (differ & ((1u << (gap->length - at)) - 1)) == 0;
        if (differ) return false;
    }
    return false;
#else
    return memcmp(p, gap->text, (size_t)gap->length) == 0;
#endif
}

/* From the comma after a value, or an object's first byte, to the next value; `at` goes from gap to gap. */
static inline const char *next_value(Keys *keys, const char *p, const char *end, int *at, int *field) {
    Gap *before = &keys->gaps[*at];
    if (end - p >= GAP_BYTES) {
        for (int i = 0; i < FOLLOWERS; i++) {
            const Gap *gap = &keys->gaps[before->followers[i]];
            if (gap->length == 0 || !same(p, gap)) continue;
            *at = before->followers[i];
            *field = gap->field;
            return blank(p + gap->length, end);
        }
    }
    Marks marks = {false, false};
    const char *start = p;
    p = blank(p + 1, end);
    if (p == end || *p != '"') return NULL;
    const char *key = p + 1;
    p = string_end(key, end, &marks);
    if (!p || marks.escaped || marks.wide) return NULL;
    *field = field_of(keys, key, (size_t)(p - key));
    p = blank(p + 1, end);
    if (p == end || *p != ':') return NULL;
    p = blank(p + 1, end);
    *at = 0;
    if (p - start > GAP_BYTES) return p;
    if (keys->gap_count == MAX_GAPS) return p;
    int length = (int)(p - start), known = 1;
    while (known < keys->gap_count && (keys->gaps[known].length != length || memcmp(keys->gaps[known].text, start, (size_t)length) != 0)) known++;
    if (known == keys->gap_count) {
        keys->gap_count++;
        keys->gaps[known].length = length;
        keys->gaps[known].field = *field;
        memcpy(keys->gaps[known].text, start, (size_t)length);
    }
    before->followers[before->oldest++ % FOLLOWERS] = (uint8_t)known;
    *at = known;
    return p;
}

/* An object of fields of one level; of an event, its arguments' too. */
static const char *object(Decoder *self, const char *p, const char *end, int level) {
    Keys *keys = &self->keys[level];
    int gap = 0, field;
    self->seen[level] = 0;
    const char *first = blank(p + 1, end);
    if (first < end && *first == '}') return first + 1;
    for (;;) {
        p = next_value(keys, p, end, &gap, &field);
        if (!p || p == end) return NULL;
        if (field < 0) {
            p = value_end(p, end);
        } else {
            if (self->seen[level] >> field & 1) return NULL;
            self->seen[level] |= (uint64_t)1 << field;
            if (keys->fields[field].kind == ARGUMENTS)
                p = *p == '{' ? object(self, p, end, ARGS) : NULL;
            else
                p = take(self, p, end, keys->fields[field].kind, &self->values[level][field]);
        }
        if (!p) return NULL;
        p = blank(p, end);
        if (p == end) return NULL;
        if (*p == '}') return p + 1;
        if (*p != ',') return NULL;
    }
}

static bool events(Decoder *self, const char *p, const char *end) {
    for (;;) {
        p = blank(p, end);
        if (p == end || *p != '{') return false;
        self->seen[ARGS] = 0;
        self->seen[EVENT] = 0;
        p = object(self, p, end, EVENT);
        if (!p || !add_event(self)) return false;
        p = blank(p, end);
        if (p == end) return true;
        if (*p != ',') return false;
        p++;
    }
}

/* ---- rows to what Python takes ---- */

/* Codes as strings that were not recorded would have been numbered with the others, "", when the first of them was met. */
static PyObject *coded(const Column *column, size_t rows) {
    int32_t seen = 0, empty = -1;
    for (size_t i = 0; i < rows; i++) {
        if (column->code[i] >= 0 && empty < 0) {
            seen = column->code[i] >= seen ? column->code[i] + 1 : seen;
        } else if (empty < 0) {
            empty = seen;
            column->code[i] = empty;
        } else {
            column->code[i] = column->code[i] < 0 ? empty : column->code[i] >= empty ? column->code[i] + 1 : column->code[i];
        }
    }
    PyObject *texts = PyList_New((Py_ssize_t)column->text_count + (empty >= 0));
    if (!texts) return NULL;
    for (size_t i = 0, at = 0; i < column->text_count + (empty >= 0); i++) {
        Span span = (int32_t)i == empty ? (Span){"", 0} : column->texts[at++];
        PyObject *text = PyUnicode_DecodeUTF8(span.at, (Py_ssize_t)span.length, column->kind == RAW ? "replace" : "strict");
        if (!text || PyList_SetItem(texts, (Py_ssize_t)i, text) < 0) {
            Py_DECREF(texts);
            return NULL;
        }
    }
    return Py_BuildValue("(NN)", PyBytes_FromStringAndSize((char *)column->code, (Py_ssize_t)(rows * 4)), texts);
}

static bool set(PyObject *dict, PyObject *key, PyObject *value) {
    bool done = key && value && PyDict_SetItem(dict, key, value) == 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return done;
}

static PyObject *columns_of(Decoder *self, const Table *table) {
    PyObject *made = PyDict_New();
    if (!made) return NULL;
    bool done = true;
    if (table->timed) done = set(made, PyUnicode_FromString("ts"), PyBytes_FromStringAndSize((char *)table->start, (Py_ssize_t)(table->rows * 8)));
    if (table->lasting)
        done = done && set(made, PyUnicode_FromString("dur"), PyBytes_FromStringAndSize((char *)table->duration, (Py_ssize_t)(table->rows * 8)));
    for (int level = 0; level < 2; level++) {
        for (int i = 0; i < self->keys[level].count && done; i++) {
            const Column *column = &table->columns[level][i];
            if (!(table->mask[level] >> i & 1) || !column->used) continue;
            bool numbers = column->kind == INTEGER || column->kind == FLOAT;
            PyObject *value = numbers ? PyBytes_FromStringAndSize(column->any, (Py_ssize_t)(table->rows * 8)) : coded(column, table->rows);
            done = set(made, PyLong_FromLong(level * MAX_FIELDS + i), value);
        }
    }
    if (!done) Py_CLEAR(made);
    return made;
}

static PyObject *result(Decoder *self) {
    PyObject *tables = PyList_New(0), *categories = PyList_New(0);
    bool done = tables && categories;
    for (size_t met = 1; met <= self->met && done; met++) {
        for (int i = 0; i < self->table_count && done; i++) {
            Table *table = &self->tables[i];
            if (table->met != met) continue;
            PyObject *columns = columns_of(self, table);
            PyObject *entry = columns ? Py_BuildValue("(inN)", i, (Py_ssize_t)table->rows, columns) : NULL;
            done = entry && PyList_Append(tables, entry) == 0;
            Py_XDECREF(entry);
        }
    }
    for (size_t i = 0; i < self->category.text_count && done; i++) {
        if (!self->counted[i].events) continue;
        Span name = self->category.texts[i];
        PyObject *entry = Py_BuildValue("(Nn)", PyUnicode_DecodeUTF8(name.at, (Py_ssize_t)name.length, "strict"), (Py_ssize_t)self->counted[i].events);
        done = entry && PyList_Append(categories, entry) == 0;
        Py_XDECREF(entry);
    }
    if (!done) {
        Py_XDECREF(tables);
        Py_XDECREF(categories);
        return NULL;
    }
    return Py_BuildValue("(nnnNN)", (Py_ssize_t)self->events, (Py_ssize_t)self->samples, (Py_ssize_t)self->bad_durations, tables, categories);
}

static void reset(Decoder *self) {
    for (int i = 0; i < self->table_count; i++) {
        Table *table = &self->tables[i];
        table->rows = table->met = 0;
        for (int level = 0; level < 2; level++)
            for (int field = 0; field < MAX_FIELDS; field++) {
                table->columns[level][field].used = false;
                table->columns[level][field].text_count = 0;
            }
    }
    for (int level = 0; level < 2; level++) {
        Keys *keys = &self->keys[level];
        if (keys->gap_count < MAX_GAPS) continue; /* no room: what comes may be written otherwise */
        memset(keys->gaps, 0, sizeof keys->gaps);
        keys->gap_count = 1;
    }
    self->category.text_count = 0;
    self->events = self->samples = self->bad_durations = self->met = 0;
    self->no_memory = false;
    if (self->interned_slots > KEPT_SLOTS) {
        free(self->interned);
        self->interned = NULL;
        self->interned_slots = 0;
    }
    if (self->interned) memset(self->interned, 0, self->interned_slots * sizeof *self->interned);
    self->interned_count = 0;
    while (self->blocks) {
        Block *next = self->blocks->next;
        free(self->blocks);
        self->blocks = next;
    }
}

static PyObject *decode(PyObject *object, PyObject *text) {
    Decoder *self = (Decoder *)object;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(text, &bytes, &size) < 0) return NULL;
    if (atomic_flag_test_and_set(&self->busy)) Py_RETURN_NONE;
    self->unlocked = PyEval_SaveThread();
    reset(self);
    bool regular = events(self, bytes, bytes + size);
    PyEval_RestoreThread(self->unlocked);
    PyObject *made = NULL;
    if (regular)
        made = result(self);
    else if (self->no_memory)
        PyErr_NoMemory();
    else
        made = Py_NewRef(Py_None);
    atomic_flag_clear(&self->busy);
    return made;
}

/* ---- the schema ---- */

/* A str of Python's. No format with #: what newer headers make of it, Python before 3.13 refuses. */
static bool copied(PyObject *str, size_t *length_of, char **to) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(str, &length);
    if (!text) return false;
    *length_of = (size_t)length;
    *to = malloc((size_t)length + 1);
    if (!*to) return PyErr_NoMemory(), false;
    memcpy(*to, text, (size_t)length);
    return true;
}

static bool too_many(const char *what) { return PyErr_Format(PyExc_ValueError, "too many %s", what), false; }

/* Fields of one level: pairs of a key and its kind. */
static bool read_fields(Keys *keys, PyObject *fields) {
    Py_ssize_t count = PySequence_Size(fields);
    if (count < 0) return false;
    if (count > MAX_FIELDS) return too_many("fields");
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(fields, i);
        PyObject *key;
        int kind;
        bool done = item && PyArg_ParseTuple(item, "UC", &key, &kind) && copied(key, &keys->fields[i].length, &keys->fields[i].key);
        if (done) {
            Field *field = &keys->fields[i];
            keys->count++;
            field->kind = (char)kind;
            uint64_t at = hash_of(field->key, field->length) % KEY_SLOTS;
            while (keys->slots[at]) at = (at + 1) % KEY_SLOTS;
            keys->slots[at] = (uint8_t)(i + 1);
            keys->gap_count = 1;
        }
        Py_XDECREF(item);
        if (!done) return false;
    }
    return true;
}

/* Tables: whether rows have a time, whether a duration, and the fields of the event and of its arguments, as bits. */
static bool read_tables(Decoder *self, PyObject *tables) {
    Py_ssize_t count = PySequence_Size(tables);
    if (count < 0) return false;
    if (count > MAX_TABLES) return too_many("tables");
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(tables, i);
        Table *table = &self->tables[i];
        int timed, lasting;
        unsigned long long event, args;
        bool done = item && PyArg_ParseTuple(item, "ppKK", &timed, &lasting, &event, &args);
        Py_XDECREF(item);
        if (!done) return false;
        table->timed = timed;
        table->lasting = lasting;
        for (int level = 0; level < 2; level++) {
            int known = self->keys[level].count;
            table->mask[level] = (level == EVENT ? event : args) & (known == 64 ? ~(uint64_t)0 : ((uint64_t)1 << known) - 1);
            for (int field = 0; field < known; field++) table->columns[level][field].kind = self->keys[level].fields[field].kind;
        }
        self->table_count++;
    }
    return true;
}

static bool in_range(const Decoder *self, int table) {
    if (table >= REFUSED && table < self->table_count) return true;
    return PyErr_SetString(PyExc_ValueError, "no such table"), false;
}

static bool read_categories(Decoder *self, PyObject *categories) {
    Py_ssize_t count = PySequence_Size(categories);
    if (count < 0 || !(self->categories = calloc((size_t)count + 1, sizeof *self->categories))) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(categories, i);
        PyObject *name;
        Category *category = &self->categories[i];
        bool done = item && PyArg_ParseTuple(item, "Ui", &name, &category->table) && in_range(self, category->table) &&
                    copied(name, &category->length, &category->name);
        if (done) self->category_count++;
        Py_XDECREF(item);
        if (!done) return false;
    }
    return true;
}

static bool read_routes(Decoder *self, PyObject *routes) {
    Py_ssize_t count = PySequence_Size(routes);
    if (count < 0) return false;
    if (count > MAX_ROUTES) return too_many("routes");
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(routes, i);
        PyObject *name;
        int phase, of_thread;
        Route *route = &self->routes[i];
        bool done = item && PyArg_ParseTuple(item, "CUip", &phase, &name, &route->table, &of_thread) && in_range(self, route->table) &&
                    route->table >= 0 && copied(name, &route->length, &route->name);
        if (done) route->phase = (char)phase, route->of_thread = of_thread, self->route_count++;
        Py_XDECREF(item);
        if (!done) return false;
    }
    return true;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *event, *arguments, *tables, *categories, *routes;
    const char *refused;
    (void)kwargs;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Decoder *self = (Decoder *)allocate(type, 0);
    if (!self) return NULL;
    atomic_flag_clear(&self->busy);
    self->category.kind = TEXT;
    bool done = PyArg_ParseTuple(args, "OOOOOsddL", &event, &arguments, &tables, &categories, &routes, &refused, &self->exact_below,
                                 &self->valid_below, &self->longest) &&
                read_fields(&self->keys[EVENT], event) && read_fields(&self->keys[ARGS], arguments) && read_tables(self, tables) &&
                read_categories(self, categories) && read_routes(self, routes);
    if (done) strncpy(self->refused, refused, sizeof self->refused - 1);
    if (!done && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "not a schema");
    if (!done) Py_CLEAR(self);
    return (PyObject *)self;
}

static void end(PyObject *object) {
    Decoder *self = (Decoder *)object;
    PyTypeObject *type = Py_TYPE(object);
    reset(self);
    for (int level = 0; level < 2; level++)
        for (int i = 0; i < self->keys[level].count; i++) free(self->keys[level].fields[i].key);
    for (int i = 0; i < self->table_count; i++) {
        free(self->tables[i].start);
        free(self->tables[i].duration);
        for (int level = 0; level < 2; level++)
            for (int field = 0; field < MAX_FIELDS; field++) {
                free(self->tables[i].columns[level][field].any);
                free(self->tables[i].columns[level][field].texts);
            }
    }
    for (int i = 0; i < self->route_count; i++) free(self->routes[i].name);
    for (int i = 0; i < self->category_count; i++) free(self->categories[i].name);
    free(self->categories);
    free(self->category.texts);
    free(self->counted);
    free(self->interned);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef METHODS[] = {
    {"decode", decode, METH_O, "The columns of a piece of text, or None where something in it is not regular."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot SLOTS[] = {
    {Py_tp_new, make},
    {Py_tp_dealloc, end},
    {Py_tp_methods, METHODS},
    {0, NULL},
};
static PyType_Spec SPEC = {"trace_advisor_native.Decoder", sizeof(Decoder), 0, Py_TPFLAGS_DEFAULT, SLOTS};
static PyMethodDef FUNCTIONS[] = {
    {"replay", replay, METH_VARARGS, "When each repeat of a schedule was done, and when the last op of the last one ended."},
    {"longest", longest, METH_VARARGS, "When each repeat of a schedule was done, and the longest path to the end of the last."},
    {"block_sizes", block_sizes, METH_VARARGS, "Bytes of the block of each allocation, by recorded events."},
    {"reserved", reserved, METH_VARARGS, "Bytes reserved by a simulated allocator after each event."},
    {"wire_records", wire_records, METH_VARARGS, "Begins and ends of the messages of a repeated field."},
    {"wire_fields", wire_fields, METH_VARARGS, "The first field of each message."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "trace_advisor_native", NULL, 0, FUNCTIONS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_trace_advisor_native(void) {
    PyObject *module = PyModule_Create(&MODULE), *type = PyType_FromSpec(&SPEC);
    if (!module || !type || PyModule_AddIntConstant(module, "VERSION", 5) < 0 || PyModule_AddObject(module, "Decoder", type) < 0) {
        Py_XDECREF(module);
        Py_XDECREF(type);
        return NULL;
    }
    return module;
}
