// The matrix products: everything that costs time is in `micro`.
//
// A product is  out(row, column) = sum over segments, sum over k of a_segment(row, k) * b_segment(k, column).
// Rows are sequences of a tile (or units, in a weight gradient). Columns come in vectors of W, and vectors in panels
// of at most 4, so that rows x vectors sums stay in registers (6 x 4 of 32) while k runs. A segment is one term of
// the sum: W_hm M(t), W_hl H below, R(W_hm) M(t), ... all go into the same registers before anything is written.
//
// A packed matrix stores, panel after panel, for each k the panel's vectors side by side: one panel is read
// front to back. Where the panel belongs to a gated cell, its vectors are the gates of one block of W units.
#pragma once
#include <algorithm>

#include "vector.h"

namespace rn {

constexpr int panel_vectors = 4;

struct Segment {
    const void* a;              // element (row 0, step 0); strides count units (4 bytes)
    ptrdiff_t a_row, a_step;
    const void* b;              // packed: b_step == 0, the panel of vector v starts at v * steps * W
    ptrdiff_t b_step;           // unpacked: units from one step to the next; vector v starts at v * W
    int steps;
};

template <class Kind, int ROWS, int VECTORS>
__attribute__((noinline)) void micro(const Segment* segments, int count, int vector, ptrdiff_t row, float* out,
                                     ptrdiff_t out_row, bool add) {
    using Unit = typename Kind::Unit;
    using Panel = typename Kind::Panel;
    Vec sums[ROWS][VECTORS] = {};
    for (const Segment* s = segments; s != segments + count; ++s) {
        const ptrdiff_t a_row = s->a_row, a_step = s->a_step;
        const Unit* a = (const Unit*)s->a + row * a_row;
        const ptrdiff_t b_step = s->b_step ? s->b_step : VECTORS * W;
        const Unit* b = (const Unit*)s->b + (s->b_step ? (ptrdiff_t)vector * W : (ptrdiff_t)vector * s->steps * W);
        const int steps = s->steps;
#pragma GCC unroll 2
        for (int k = 0; k < steps; ++k) {
            Panel columns[VECTORS];
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; ++j) columns[j] = *(const Panel*)(b + j * W);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; ++i) {
                Panel value = Kind::spread(a[i * a_row]);
#pragma GCC unroll 8
                for (int j = 0; j < VECTORS; ++j)
                    sums[i][j] = Kind::multiply_add(sums[i][j], value, columns[j]);
            }
            a += a_step;
            b += b_step;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) {
            float* place = out + i * out_row + j * W;
            store(place, add ? load(place) + sums[i][j] : sums[i][j]);
        }
}

// One panel of VECTORS vectors for all `rows` (a multiple of 4), in groups that fill the registers.
template <class Kind, int VECTORS>
void panel(const Segment* s, int n, int vector, int rows, float* out, ptrdiff_t out_row, bool add) {
    constexpr bool wide = vector_registers >= 32;
    int row = 0;
    if constexpr (VECTORS == 4 && wide) {
        const int groups = (rows + 5) / 6, base = rows / groups, larger = rows % groups;  // 32 = 6+6+5+5+5+5
        for (int g = 0; g < groups; ++g) {
            const int size = base + (g < larger);
            float* place = out + row * out_row;
            if (size == 6) micro<Kind, 6, 4>(s, n, vector, row, place, out_row, add);
            else if (size == 5) micro<Kind, 5, 4>(s, n, vector, row, place, out_row, add);
            else micro<Kind, 4, 4>(s, n, vector, row, place, out_row, add);
            row += size;
        }
    } else {
        constexpr int large = wide || VECTORS == 1 ? 8 : 4, small = wide || VECTORS < 4 ? 4 : 2;
        constexpr int most = large < small ? small : (VECTORS == 4 ? small : large);
        for (; row + most <= rows; row += most)
            micro<Kind, most, VECTORS>(s, n, vector, row, out + row * out_row, out_row, add);
        for (; row < rows; row += small)
            micro<Kind, small, VECTORS>(s, n, vector, row, out + row * out_row, out_row, add);
    }
}

template <class Kind>
void multiply(const Segment* s, int n, int vector, int vectors, int rows, float* out, ptrdiff_t out_row, bool add) {
    switch (vectors) {
        case 1: return panel<Kind, 1>(s, n, vector, rows, out, out_row, add);
        case 2: return panel<Kind, 2>(s, n, vector, rows, out, out_row, add);
        case 3: return panel<Kind, 3>(s, n, vector, rows, out, out_row, add);
        default: return panel<Kind, 4>(s, n, vector, rows, out, out_row, add);
    }
}

// How `vectors` vectors are cut into panels: `gates` at a time for gated cells, else as evenly as possible.
struct Cut {
    int vectors, panels, base, larger;
    Cut(int vectors = 0, int gates = 1) : vectors(vectors) {
        panels = gates > 1 ? vectors / gates : (vectors + panel_vectors - 1) / panel_vectors;
        base = panels ? vectors / panels : 0;
        larger = panels ? vectors % panels : 0;
    }
    int first(int p) const { return p * base + std::min(p, larger); }
    int size(int p) const { return base + (p < larger); }
};

}  // namespace rn
