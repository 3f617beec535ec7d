// A network's sizes, where its weights lie in the flat vector, the packed copies that the products read, and the
// image in which gradients are summed. DESIGN.md, "The flat vector", is the layout; `plan` below is that table.
//
//   h hidden units of a layer · G gates · V symbols or input features · hp, Vp: padded to whole vectors
//   rows of a weight = to, columns = from
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "multiply.h"

namespace rn {

// Mirrors `Architecture` in interface.py, field for field.
struct Architecture {
    int32_t cell;  // 0 rnn, 1 lstm, 2 lstm-original, 3 mrnn, 4 mlstm
    int32_t depth;
    int32_t hidden[32];
    int32_t inputs, outputs;
    int32_t real_inputs;   // 1: vectors; 0: symbols
    int32_t squared_loss;  // 1: squared error; 0: softmax
    int32_t direct_input, direct_output;
    int32_t bias, output_bias;
    int32_t squash_input;
};

inline int vectors_of(int n) { return (n + W - 1) / W; }
inline int padded(int n) { return vectors_of(n) * W; }

// Elements from one row to the next: whole vectors, in an odd number of 64-byte lines, so that columns of rows spread
// over all sets of the first cache.
template <class E>
ptrdiff_t row_of(int n) {
    ptrdiff_t bytes = padded(n) * sizeof(E), lines = (bytes + 63) / 64;
    return (lines | 1) * 64 / sizeof(E);
}

// A bump allocator over one block; with base == nullptr it only counts.
struct Arena {
    char* base;
    size_t used = 0;
    template <class T>
    T* take(size_t count) {
        T* p = (T*)(base + used);
        used += (count * sizeof(T) + 63) / 64 * 64;
        return p;
    }
};

struct LayerPlan {
    int h, hp, below, inputs;    // below: units of the layer below where W_*l exists, else 0
    bool table, output;          // inputs are symbols; the layer has W_oh
    bool from_below;             // no direct input: I(t) is the output of the layer below
    int64_t mi, mh, in, rec, lower, bias, out;  // offsets in the flat vector, -1 where absent
    // offsets in the gradient image (floats)
    size_t g_mi, g_mh, g_in, g_rec, g_lower, g_row, g_out;
};

struct Plan {
    Architecture a;
    int gates;
    bool factored;
    std::vector<LayerPlan> layers;
    int64_t output_bias = -1, size = 0;
    size_t g_output_bias, image = 0;  // floats of the gradient image

    explicit Plan(const Architecture& architecture) : a(architecture) {
        gates = a.cell == 1 || a.cell == 4 ? 4 : a.cell == 2 ? 3 : 1;
        factored = a.cell >= 3;
        auto weight = [&](int64_t rows, int64_t columns) {
            int64_t start = size;
            size += rows * columns;
            return start;
        };
        auto room = [&](size_t rows, size_t columns) {
            size_t start = image;
            image += (rows * columns + 15) / 16 * 16;
            return start;
        };
        for (int l = 0; l < a.depth; ++l) {
            LayerPlan p{};
            p.h = a.hidden[l];
            p.hp = padded(p.h);
            p.from_below = l > 0 && !a.direct_input;
            p.inputs = p.from_below ? a.hidden[l - 1] : a.inputs;
            p.below = l > 0 && a.direct_input ? a.hidden[l - 1] : 0;
            p.table = !p.from_below && !a.real_inputs;
            p.output = a.direct_output || l == a.depth - 1;
            const int G = gates, ip = padded(p.inputs);
            p.mi = factored ? weight(p.h, p.inputs) : -1;
            p.mh = factored ? weight(p.h, p.h) : -1;
            p.in = weight(G * p.h, p.inputs);
            p.rec = weight(G * p.h, p.h);
            p.lower = p.below ? weight(G * p.h, p.below) : -1;
            p.bias = a.bias ? weight(G * p.h, 1) : -1;
            p.out = p.output ? weight(a.outputs, p.h) : -1;
            // Symbols: one row of the image per symbol. Vectors: a matrix, and one row that sums the bias.
            p.g_row = room(p.table ? p.inputs : 1, G * p.hp);
            p.g_in = p.table ? 0 : room(G * p.hp, ip);
            p.g_mi = factored ? (p.table ? room(p.inputs, p.hp) : room(p.hp, ip)) : 0;
            p.g_mh = factored ? room(p.hp, p.hp) : 0;
            p.g_rec = room(G * p.hp, p.hp);
            p.g_lower = p.below ? room(G * p.hp, padded(p.below)) : 0;
            p.g_out = p.output ? room(padded(a.outputs), p.hp) : 0;
            layers.push_back(p);
        }
        if (a.output_bias) output_bias = weight(a.outputs, 1);
        g_output_bias = room(1, padded(a.outputs));
    }
};

// ---- packing ----
// Forward: vectors run over the rows (to) of a weight, the gates of one block of W units side by side.
template <class Kind>
void pack_forward(typename Kind::Unit* out, const float* w, int gates, int h, int columns, Cut cut) {
    const int steps = (columns + Kind::depth - 1) / Kind::depth;
    for (int p = 0; p < cut.panels; ++p) {
        typename Kind::Unit* panel = out + (size_t)cut.first(p) * W * steps;
        const int wide = cut.size(p) * W;
        for (int j = 0; j < cut.size(p); ++j) {
            const int v = cut.first(p) + j, block = v / gates, gate = v % gates;
            for (int lane = 0; lane < W; ++lane) {
                const int unit = block * W + lane;
                typename Kind::Unit* place = panel + j * W + lane;
                const float* row = w + ((size_t)gate * h + unit) * columns;
                for (int k = 0; k < steps; ++k) place[(size_t)k * wide] = unit < h ? Kind::pair(row + k * Kind::depth, 1, columns - k * Kind::depth) : 0;
            }
        }
    }
}

// Transposed, for back-propagation: vectors run over the columns (from), steps over the rows.
template <class Kind>
void pack_transposed(typename Kind::Unit* out, const float* w, int rows, int columns) {
    const int steps = (rows + Kind::depth - 1) / Kind::depth;
    const Cut cut(vectors_of(columns));
    for (int p = 0; p < cut.panels; ++p) {
        typename Kind::Unit* place = out + (size_t)cut.first(p) * W * steps;
        const int first = cut.first(p) * W, wide = cut.size(p) * W, inside = std::min(wide, columns - first);
        for (int k = 0; k < steps; ++k, place += wide) {
            const float* row = w + (size_t)k * Kind::depth * columns + first;
            for (int j = 0; j < inside; ++j) place[j] = Kind::pair(row + j, columns, rows - k * Kind::depth);
            for (int j = inside; j < wide; ++j) place[j] = 0;
        }
    }
}

// Look-up rows: row of symbol v = the columns v of the gates, plus their bias; one row with the bias alone for vectors.
inline void pack_table(float* out, const float* w, const float* bias, int gates, int h, int hp, int symbols) {
    for (int v = 0; v < std::max(symbols, 1); ++v)
        for (int g = 0; g < gates; ++g)
            for (int u = 0; u < hp; ++u) {
                float x = 0;
                if (u < h && symbols) x = w[((size_t)g * h + u) * symbols + v];
                if (u < h && bias) x += bias[g * h + u];
                out[((size_t)v * gates + g) * hp + u] = x;
            }
}

// All packed copies of one flat vector: the weights (forward and transposed), or a direction (forward only).
template <class Kind>
struct Packed {
    using Unit = typename Kind::Unit;
    struct Layer {
        Unit *in, *mi, *mh, *rec, *lower, *out;
        Unit *in_back[4], *rec_back[4], *lower_back[4], *mi_back, *mh_back, *out_back;
        float *table, *mi_table;
    };
    std::vector<Layer> layers;
    float* output_bias;

    static int steps(int n) { return (n + Kind::depth - 1) / Kind::depth; }

    // Lay the copies out in `arena` and add one job for each to `jobs`, to be run where the arena is real.
    void lay(const Plan& plan, const float* flat, Arena& arena, std::vector<std::function<void()>>& jobs) {
        const Architecture& a = plan.a;
        auto forward = [&](int64_t at, int gates, int h, int columns) {
            Cut cut(gates * vectors_of(h), gates);
            Unit* out = arena.take<Unit>((size_t)cut.vectors * W * steps(columns));
            jobs.push_back([=] { pack_forward<Kind>(out, flat + at, gates, h, columns, cut); });
            return out;
        };
        auto rows = [&](int64_t at, int64_t bias, int gates, int h, int symbols) {
            float* out = arena.take<float>((size_t)std::max(symbols, 1) * gates * padded(h));
            jobs.push_back([=] { pack_table(out, flat + at, bias < 0 ? nullptr : flat + bias, gates, h, padded(h), symbols); });
            return out;
        };
        layers.assign(plan.layers.size(), {});
        for (size_t l = 0; l < layers.size(); ++l) {
            const LayerPlan& p = plan.layers[l];
            Layer& y = layers[l];
            const int G = plan.gates;
            y.table = rows(p.in, p.bias, G, p.h, p.table ? p.inputs : 0);
            y.rec = forward(p.rec, G, p.h, p.h);
            if (!p.table) y.in = forward(p.in, G, p.h, p.inputs);
            if (p.below) y.lower = forward(p.lower, G, p.h, p.below);
            if (p.output) y.out = forward(p.out, 1, a.outputs, p.h);
            if (plan.factored) {
                y.mh = forward(p.mh, 1, p.h, p.h);
                if (p.table) y.mi_table = rows(p.mi, -1, 1, p.h, p.inputs);
                else y.mi = forward(p.mi, 1, p.h, p.inputs);
            }
        }
        output_bias = arena.take<float>(padded(a.outputs));
        float* to = output_bias;
        const float* from = plan.output_bias < 0 ? nullptr : flat + plan.output_bias;
        jobs.push_back([=] {
            for (int i = 0; i < padded(a.outputs); ++i) to[i] = from && i < a.outputs ? from[i] : 0;
        });
    }
    void lay_back(const Plan& plan, const float* flat, Arena& arena, std::vector<std::function<void()>>& jobs) {
        auto back = [&](int64_t at, int rows, int columns) {
            Unit* out = arena.take<Unit>((size_t)vectors_of(columns) * W * steps(rows));
            jobs.push_back([=] { pack_transposed<Kind>(out, flat + at, rows, columns); });
            return out;
        };
        for (size_t l = 0; l < layers.size(); ++l) {
            const LayerPlan& p = plan.layers[l];
            Layer& y = layers[l];
            for (int g = 0; g < plan.gates; ++g) {
                y.rec_back[g] = back(p.rec + (int64_t)g * p.h * p.h, p.h, p.h);
                if (p.below) y.lower_back[g] = back(p.lower + (int64_t)g * p.h * p.below, p.h, p.below);
                if (p.from_below) y.in_back[g] = back(p.in + (int64_t)g * p.h * p.inputs, p.h, p.inputs);
            }
            if (p.output) y.out_back = back(p.out, plan.a.outputs, p.h);
            if (plan.factored) {
                y.mh_back = back(p.mh, p.h, p.h);
                if (p.from_below) y.mi_back = back(p.mi, p.h, p.inputs);
            }
        }
    }
};

// Adds a finished image to the flat vector, layer by layer; `scale` is 1 for plain sums.
inline void add_image(const Plan& plan, const float* image, float* flat, int layer) {
    auto matrix = [&](size_t at, int64_t to, int gates, int h, int hp, int columns) {
        const size_t stride = padded(columns);
        for (int g = 0; g < gates; ++g)
            for (int u = 0; u < h; ++u) {
                const float* row = image + at + ((size_t)g * hp + u) * stride;
                float* out = flat + to + ((int64_t)g * h + u) * columns;
                for (int c = 0; c < columns; ++c) out[c] += row[c];
            }
    };
    auto table = [&](size_t at, int64_t to, int gates, int h, int hp, int symbols) {
        for (int v = 0; v < symbols; ++v)
            for (int g = 0; g < gates; ++g)
                for (int u = 0; u < h; ++u)
                    flat[to + ((int64_t)g * h + u) * symbols + v] += image[at + ((size_t)v * gates + g) * hp + u];
    };
    const LayerPlan& p = plan.layers[layer];
    const int G = plan.gates;
    if (p.table) table(p.g_row, p.in, G, p.h, p.hp, p.inputs);
    else matrix(p.g_in, p.in, G, p.h, p.hp, p.inputs);
    if (p.bias >= 0)
        for (int v = 0; v < (p.table ? p.inputs : 1); ++v)
            for (int g = 0; g < G; ++g)
                for (int u = 0; u < p.h; ++u)
                    flat[p.bias + (int64_t)g * p.h + u] += image[p.g_row + ((size_t)v * G + g) * p.hp + u];
    matrix(p.g_rec, p.rec, G, p.h, p.hp, p.h);
    if (p.below) matrix(p.g_lower, p.lower, G, p.h, p.hp, p.below);
    if (p.output) matrix(p.g_out, p.out, 1, plan.a.outputs, padded(plan.a.outputs), p.h);
    if (plan.factored) {
        matrix(p.g_mh, p.mh, 1, p.h, p.hp, p.h);
        if (p.table) table(p.g_mi, p.mi, 1, p.h, p.hp, p.inputs);
        else matrix(p.g_mi, p.mi, 1, p.h, p.hp, p.inputs);
    }
    if (layer == 0 && plan.output_bias >= 0)
        for (int i = 0; i < plan.a.outputs; ++i) flat[plan.output_bias + i] += image[plan.g_output_bias + i];
}

}  // namespace rn
