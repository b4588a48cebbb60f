// Sparse matrices as kernels see them, in compressed rows or in column strips (src/sparse/tiled.rs
// describes those), and ways to walk their entries.
#pragma once
#include "capgrad.cuh"

// Of a matrix that is streamed only some rows and entries are here; addresses are shifted so that
// they keep their numbers.
struct Matrix {
    u64 rows, cols;
    // The rows and the entries that are here.
    u64 row_begin, row_end, first, last;
    // Columns of a strip, and strips; 0 of compressed rows.
    u64 strip, strips;
    const void* offsets;
    const u32* pieces;
    const void* columns;
    const scalar* values;
    // Whether offsets are 64-bit.
    u64 wide;
};

// Compressed rows; strips with values of their own; strips with values in the order of the rows.
#define ROWS 0
#define TILED 1
#define APART 2

#define EVERY 0xffffffffu

// How a dense side lies: element (index, vector) is at `index * step + vector * apart`.
struct Side {
    u64 step, apart;
};

INLINE u64 row_offset(const Matrix& m, u64 row) {
    return m.wide ? (u64) reinterpret_cast<const i64*>(m.offsets)[row]
                  : (u64) reinterpret_cast<const u32*>(m.offsets)[row];
}

INLINE u64 piece_start(const Matrix& m, u64 piece) {
    return (u64)(m.pieces[piece] & 0x3fffffffu) * 4;
}

INLINE u64 piece_length(const Matrix& m, u64 piece) {
    u32 mark = m.pieces[piece], next = m.pieces[piece + 1];
    return (u64)((next & 0x3fffffffu) - (mark & 0x3fffffffu)) * 4 - (mark >> 30);
}

// Entries of a row that are stored together.
struct Segment {
    u64 row, begin, end;
    // What is added to the columns, and to an entry's number to get that of its value.
    u64 base, shift;
};

// Of a row in one strip, whose entries before this strip are `before`.
template <int FORM> INLINE Segment segment(const Matrix& m, u64 row, u64 strip, u64 before) {
    Segment s;
    s.row = row;
    if (FORM == ROWS) {
        u64 begin = row_offset(m, row), end = row_offset(m, row + 1);
        s.begin = begin > m.first ? begin : m.first;
        s.end = end < m.last ? end : m.last;
        s.base = s.shift = 0;
    } else {
        u64 piece = strip * m.rows + row;
        s.begin = piece_start(m, piece);
        s.end = s.begin + piece_length(m, piece);
        s.base = strip * m.strip;
        s.shift = FORM == APART ? row_offset(m, row) + before - s.begin : 0;
    }
    return s;
}

// Entries of a row in the strips before one.
INLINE u64 entries_before(const Matrix& m, u64 row, u64 strip) {
    u64 count = 0;
    for (u64 s = 0; s < strip; ++s) count += piece_length(m, s * m.rows + row);
    return count;
}

template <int FORM> INLINE u32 column_of(const Matrix& m, const Segment& s, u64 entry) {
    return FORM == ROWS ? reinterpret_cast<const u32*>(m.columns)[entry]
                        : (u32)s.base + reinterpret_cast<const u16*>(m.columns)[entry];
}

INLINE acc value_of(const Matrix& m, const Segment& s, u64 entry) {
    return (acc)widen(m.values[entry + s.shift]);
}

// Where the entries of a row (compressed rows) or of a piece begin.
template <int FORM> INLINE u64 line_start(const Matrix& m, u64 line) {
    return FORM == ROWS ? row_offset(m, line) : piece_start(m, line);
}

// The line that holds an entry: the last of [low, high) that begins at or before it.
template <int FORM> INLINE u64 line_of(const Matrix& m, u64 entry, u64 low, u64 high) {
    while (high - low > 1) {
        u64 middle = low + (high - low) / 2;
        if (line_start<FORM>(m, middle) <= entry)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Calls `f` with the segments, or parts of segments, of entries [from, to): a warp together. Rows
// may have any length, so that this is how work is shared evenly.
template <int FORM, class F> INLINE void walk(const Matrix& m, u64 from, u64 to, F f) {
    const u32 lane = threadIdx.x & 31;
    u64 lines = FORM == ROWS ? m.row_end : m.rows * m.strips;
    u64 line = line_of<FORM>(m, from, FORM == ROWS ? m.row_begin : 0, lines);
    u64 at = from;
    while (at < to) {
        Segment s;
        u64 next = line_start<FORM>(m, line + 1);
        if (FORM == ROWS) {
            s.row = line;
            s.begin = at;
            s.end = next < to ? next : to;
            s.base = s.shift = 0;
        } else {
            u64 strip = line / m.rows;
            u64 row = line - strip * m.rows;
            u64 before = FORM == APART ? entries_before(m, row, strip) : 0;
            s = segment<FORM>(m, row, strip, before);
            if (s.begin < at) s.begin = at;
            if (s.end > to) s.end = to;
        }
        if (s.begin < s.end) f(s);
        at = next;
        // The next line that has an entry from there on.
        while (at < to) {
            u64 ahead = line + 1 + lane;
            bool holds = ahead < lines && line_start<FORM>(m, ahead + 1) > at;
            u32 found = __ballot_sync(EVERY, holds);
            if (found) {
                line = line + __ffs(found);
                break;
            }
            line += 32;
        }
    }
}

// Where the next stretch of a sum ends that takes every `step`-th term of [begin, end): stretches are
// added up apart, so that no partial sum grows so much larger than its terms that these lose digits.
INLINE u64 stretch_end(u64 begin, u64 end, u64 step) {
    const u64 terms = 256;
    return end - begin > terms * step ? begin + terms * step : end;
}

// A sum of stretches, with what was rounded away (Knuth's two-sum), however many there are.
struct Total {
    acc sum, lost;
};

INLINE Total no_terms() { return Total{0, 0}; }

INLINE void add_stretch(Total& total, acc term) {
    acc after = total.sum + term, taken = after - total.sum;
    total.lost += (total.sum - (after - taken)) + (term - taken);
    total.sum = after;
}

// An infinite sum has lost what is not a number.
INLINE acc finished(const Total& total) {
    return total.lost == total.lost ? total.sum + total.lost : total.sum;
}

// `out = value`, or added to what is there.
INLINE void put(scalar* out, acc value, u32 add) {
    if (add) value += (acc)widen(*out);
    assign(*out, value);
}
