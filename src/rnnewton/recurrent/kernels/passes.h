// The passes over time, for one tile of sequences at a time: forward, tangent (R-forward), adjoint (back-propagation
// through time) with the weight gradients. A tile walks all T steps of all layers alone; nothing waits for another.
//
//   T time steps · rows sequences of the tile, a multiple of 4 (the last ones may be empty) · h units, hp whole vectors
//   G gates · K steps in a chunk of the adjoint: weight gradients are summed when the deltas of K steps are there,
//   still in cache
//
// One step of a layer is one or two products (`gates`, and `xi` where the recurrence is factored). A product is taken
// panel by panel: the micro-kernel leaves the sums of one panel, for all rows of the tile, in `scratch` (8 kB, first
// cache), and the epilogue turns them at once into the cell's values: look-ups added, gates squashed, results stored.
#pragma once
#include <cmath>
#include <vector>

#include "cells.h"
#include "network.h"

namespace rn {

// One block of sequences, as torch holds it (time-major), mirrored in interface.py.
struct Batch {
    int32_t steps, sequences;
    const int64_t* ids;       // (T, B), or null
    const float* vectors;     // (T, B, inputs), or null
    const int64_t* targets;   // (T, B), or null
    const float* values;      // (T, B, outputs), or null
    const uint8_t* scored;    // (T, B), or null: all
    const float* const* out;  // one (B, h) per layer, or null: zeros
    const float* const* state;
};

// What flows through the weights, for whoever wants it position by position; mirrored in interface.py. One pointer per
// layer, all float32: gates (T, B, G h), xi, chi, m (T, B, h), where the cell is factored, out (T + 1, B, h).
struct Traffic {
    const float* outputs;  // (T, B, O): the cotangents to begin with
    float *const *gates, *const *xi, *const *chi, *const *m, *const *out;
};

// (slots, rows, row): element (t, r, u) of one quantity.
template <class E>
struct Field {
    E* base = nullptr;
    ptrdiff_t row = 0, step = 0;
    int slots = 1;
    void take(Arena& arena, int count, int rows, int width) {
        slots = count;
        row = row_of<E>(width);
        step = row * rows;
        base = arena.take<E>((size_t)step * slots);
    }
    E* at(int t) const { return base + (size_t)(t % slots) * step; }
    E* at(int t, int r) const { return at(t) + r * row; }
};

// What the forward pass leaves for the others: per layer H_out (slot t + 1 is time t, slot 0 the initial state),
// H_state, the squashed gates, xi, M and, where I(t) is a vector, chi. `slots` bounds them where nothing is kept.
template <class Kind>
struct Kept {
    using E = typename Kind::Element;
    struct Layer {
        Field<E> out, state, gate[4], xi, m;
        Field<float> chi;
    };
    std::vector<Layer> layers;
    Field<E> input;         // real-valued I(t)
    Field<float> output;    // softmax: probabilities; squared: outputs

    void lay(const Plan& plan, Arena& arena, int steps, int rows, bool keep) {
        const int T = keep ? steps : 1, more = keep ? steps + 1 : 2;
        layers.assign(plan.layers.size(), {});
        for (size_t l = 0; l < layers.size(); ++l) {
            const LayerPlan& p = plan.layers[l];
            layers[l].out.take(arena, more, rows, p.h);
            if (plan.gates > 1) {
                layers[l].state.take(arena, more, rows, p.h);
                for (int g = 0; g < plan.gates; ++g) layers[l].gate[g].take(arena, T, rows, p.h);
            }
            if (plan.factored) {
                layers[l].xi.take(arena, T, rows, p.h);
                layers[l].m.take(arena, T, rows, p.h);
                if (!p.table) layers[l].chi.take(arena, T, rows, p.h);
            }
        }
        if (plan.a.real_inputs) input.take(arena, T, rows, plan.a.inputs);
        output.take(arena, T, rows, plan.a.outputs);
    }
};

// What a thread needs beside: running states, the tangents of the last two steps, the deltas of one chunk.
template <class Kind>
struct Work {
    using E = typename Kind::Element;
    struct Layer {
        Field<float> running;                    // H_state, R(H_state) or the carry
        Field<E> tangent_out, tangent_m, tap;    // R(H_out) of two steps, R(M), mu-term of all steps
        Field<float> tangent_chi;
        Field<E> delta[4], delta_xi, delta_chi;  // K + 1 slots
    };
    std::vector<Layer> layers;
    Field<E> delta_output;   // T slots
    Field<float> logits;
    float* scratch;
    typename Kind::Unit* pairs;  // bf16: operands of a weight gradient, two time rows side by side
    size_t pairs_size = 0;

    void lay(const Plan& plan, Arena& arena, int steps, int rows, int chunk, bool backward) {
        layers.assign(plan.layers.size(), {});
        for (size_t l = 0; l < layers.size(); ++l) {
            const LayerPlan& p = plan.layers[l];
            Layer& y = layers[l];
            y.running.take(arena, 1, rows, p.h);
            if (!backward) continue;
            y.tangent_out.take(arena, 2, rows, p.h);
            y.tap.take(arena, steps, rows, p.h);
            for (int g = 0; g < plan.gates; ++g) y.delta[g].take(arena, chunk + 1, rows, p.h);
            if (plan.factored) {
                y.tangent_m.take(arena, 1, rows, p.h);
                y.delta_xi.take(arena, chunk + 1, rows, p.h);
                if (!p.table) y.tangent_chi.take(arena, 1, rows, p.h);
                y.delta_chi.take(arena, chunk + 1, rows, p.h);
            }
        }
        logits.take(arena, 1, rows, plan.a.outputs);
        scratch = arena.take<float>((size_t)rows * panel_vectors * W);
        if (!backward) return;
        delta_output.take(arena, steps, rows, plan.a.outputs);
        if (Kind::depth > 1) {
            size_t widest = row_of<float>(plan.a.outputs);
            for (const LayerPlan& p : plan.layers) widest = std::max<size_t>({widest, (size_t)row_of<float>(p.h), (size_t)row_of<float>(p.inputs)});
            pairs_size = widest * (rows * chunk / 2);
            pairs = arena.take<typename Kind::Unit>(2 * pairs_size);
        }
    }
};

template <class Cell, class Kind>
struct Tile {
    using E = typename Kind::Element;
    using Unit = typename Kind::Unit;
    static constexpr int G = Cell::gates;
    static constexpr int depth = Kind::depth;

    const Plan& plan;
    const Packed<Kind>& weights;
    const Packed<Kind>* direction;  // R(W), for the tangent
    const Batch& batch;
    int first, valid, rows, chunk;  // sequences first … first + valid - 1
    Kept<Kind> kept;
    Work<Kind> work;
    float* image = nullptr;         // where weight gradients are summed
    Structural structural;
    const Traffic* traffic = nullptr;  // where given, deltas are written there and no weight gradient is taken
    const Architecture& a;
    int T, outputs_p;

    Tile(const Plan& plan, const Packed<Kind>& weights, const Packed<Kind>* direction, const Batch& batch, int first,
         int valid, int rows, int chunk)
        : plan(plan), weights(weights), direction(direction), batch(batch), first(first), valid(valid), rows(rows),
          chunk(chunk), a(plan.a), T(batch.steps), outputs_p(padded(plan.a.outputs)) {}

    // ---- small helpers ----
    static Segment term(const Unit* packed, const E* operand, ptrdiff_t row, int length) {
        return {operand, row / depth, 1, packed, 0, (length + depth - 1) / depth};
    }
    int64_t symbol(int t, int r) const { return r < valid ? batch.ids[(size_t)t * batch.sequences + first + r] : 0; }
    bool scored(int t, int r) const {
        return r < valid && (!batch.scored || batch.scored[(size_t)t * batch.sequences + first + r]);
    }
    bool any_scored(int t) const {
        for (int r = 0; r < valid; ++r)
            if (scored(t, r)) return true;
        return false;
    }
    // The gates' drive without products: the symbol's row of the look-up table (with the bias), or the bias alone.
    const float* table_row(const Packed<Kind>& w, int l, int t, int r) const {
        const LayerPlan& p = plan.layers[l];
        return w.layers[l].table + (p.table ? symbol(t, r) * G * p.hp : 0);
    }
    const float* chi_row(int l, int t, int r) const {
        const LayerPlan& p = plan.layers[l];
        return p.table ? weights.layers[l].mi_table + symbol(t, r) * p.hp : kept.layers[l].chi.at(t, r);
    }
    // The operand behind I(t) of a layer whose inputs are vectors.
    const E* input(int l, int t) const {
        return plan.layers[l].from_below ? kept.layers[l - 1].out.at(t + 1) : kept.input.at(t);
    }
    ptrdiff_t input_row(int l) const {
        return plan.layers[l].from_below ? kept.layers[l - 1].out.row : kept.input.row;
    }

    // All panels of one product; `epilogue(block, vectors)` finds vector j of row r at scratch[(r * 4 + j) * W].
    template <class Epilogue>
    void product(const Segment* s, int n, Cut cut, Epilogue&& epilogue) {
        for (int p = 0; p < cut.panels; ++p) {
            multiply<Kind>(s, n, cut.first(p), cut.size(p), rows, work.scratch, panel_vectors * W, false);
            epilogue(cut.first(p), cut.size(p));
        }
    }
    const float* sums(int r, int j) const { return work.scratch + (r * panel_vectors + j) * W; }

    // Calls one(r, u, before) for every row and block of W units of a gates' product, G vectors in `before`.
    template <class One>
    void gates_product(const Segment* s, int n, int h, One&& one) {
        product(s, n, Cut(G * vectors_of(h), G), [&](int vector, int vectors) {
            for (int r = 0; r < rows; ++r)
                for (int j = 0; j < vectors; j += G) {
                    Vec before[G];
                    for (int g = 0; g < G; ++g) before[g] = load(sums(r, j + g));
                    one(r, (vector + j) / G * W, before);
                }
        });
    }
    // The same for products of one vector per block.
    template <class One>
    void units_product(const Segment* s, int n, int width, One&& one) {
        product(s, n, Cut(vectors_of(width)), [&](int vector, int vectors) {
            for (int r = 0; r < rows; ++r)
                for (int j = 0; j < vectors; ++j) one(r, (vector + j) * W, load(sums(r, j)));
        });
    }

    // ---- forward ----
    void start() {
        for (size_t l = 0; l < plan.layers.size(); ++l) {
            const LayerPlan& p = plan.layers[l];
            for (int r = 0; r < rows; ++r) {
                E* out = kept.layers[l].out.at(0, r);
                for (int u = 0; u < p.hp; ++u) {
                    const bool given = batch.out && r < valid && u < p.h;
                    store_one(out + u, given ? batch.out[l][(size_t)(first + r) * p.h + u] : 0.0f);
                    if (!Cell::gated) continue;
                    const float state = given && batch.state ? batch.state[l][(size_t)(first + r) * p.h + u] : 0.0f;
                    store_one(kept.layers[l].state.at(0, r) + u, state);
                    work.layers[l].running.at(0, r)[u] = state;
                }
            }
        }
    }

    void read_vectors(int t) {
        const int width = padded(a.inputs);
        for (int r = 0; r < rows; ++r)
            for (int u = 0; u < width; ++u) {
                const bool given = r < valid && u < a.inputs;
                const size_t at = ((size_t)t * batch.sequences + first + r) * a.inputs + u;
                store_one(kept.input.at(t, r) + u, given ? batch.vectors[at] : 0.0f);
            }
    }

    void forward_layer(int l, int t) {
        const LayerPlan& p = plan.layers[l];
        const auto& w = weights.layers[l];
        auto& k = kept.layers[l];
        auto& running = work.layers[l].running;
        if (plan.factored) {
            if (!p.table) {  // chi = W_mi I(t)
                Segment s = term(w.mi, input(l, t), input_row(l), p.inputs);
                units_product(&s, 1, p.h, [&](int r, int u, Vec chi) { store(k.chi.at(t, r) + u, chi); });
            }
            Segment s = term(w.mh, k.out.at(t), k.out.row, p.h);  // xi = W_mh H(t-1),  M = chi * xi
            units_product(&s, 1, p.h, [&](int r, int u, Vec xi) {
                store(k.xi.at(t, r) + u, xi);
                store(k.m.at(t, r) + u, xi * load(chi_row(l, t, r) + u));
            });
        }
        Segment s[3];
        int n = 0;
        s[n++] = plan.factored ? term(w.rec, k.m.at(t), k.m.row, p.h) : term(w.rec, k.out.at(t), k.out.row, p.h);
        if (p.below) s[n++] = term(w.lower, kept.layers[l - 1].out.at(t + 1), kept.layers[l - 1].out.row, p.below);
        if (!p.table) s[n++] = term(w.in, input(l, t), input_row(l), p.inputs);
        gates_product(s, n, p.h, [&](int r, int u, Vec* before) {
            const float* drive = table_row(weights, l, t, r) + u;
            for (int g = 0; g < G; ++g) before[g] += load(drive + g * p.hp);
            Vec gate[G], state{}, out;
            float* place = running.at(0, r) + u;
            Cell::forward(before, load(place), a.squash_input, gate, state, out);
            store(k.out.at(t + 1, r) + u, out);
            if constexpr (Cell::gated) {
                store(place, state);
                store(k.state.at(t + 1, r) + u, state);
                for (int g = 0; g < G; ++g) store(k.gate[g].at(t, r) + u, gate[g]);
            }
        });
    }

    // O(t) = sum over layers of W_oh H(t) (+ R(W_oh) H and R(H) in the tangent), left in work.logits.
    void output_product(const Segment* s, int n, const float* bias) {
        units_product(s, n, a.outputs, [&](int r, int u, Vec z) { store(work.logits.at(0, r) + u, z + load(bias + u)); });
    }

    // Turns the logits of one row into what is kept of it (probabilities, or the outputs themselves); returns the loss.
    double score(int t, int r) {
        float* z = work.logits.at(0, r);
        float* kept_output = kept.output.at(t, r);
        const size_t at = (size_t)t * batch.sequences + first + r;
        double loss = 0;
        if (a.squared_loss) {
            for (int i = 0; i < outputs_p; i += W) store(kept_output + i, load(z + i));
            if (!scored(t, r) || !batch.values) return 0;
            for (int i = 0; i < a.outputs; ++i) {
                const double error = (double)z[i] - batch.values[at * a.outputs + i];
                loss += error * error;
            }
            return loss / a.outputs;
        }
        const float target = scored(t, r) && batch.targets ? z[batch.targets[at]] : 0.0f;
        for (int i = a.outputs; i < outputs_p; ++i) z[i] = -1e30f;  // the empty lanes of the last vector
        Vec most = load(z);
        for (int i = W; i < outputs_p; i += W) most = greatest(most, load(z + i));
        float top = most[0];
        for (int i = 1; i < W; ++i) top = std::max(top, most[i]);
        Vec total{};
        for (int i = 0; i < outputs_p; i += W) {
            Vec e = exponential(load(z + i) - top);
            if (i + W > a.outputs)
                for (int j = std::max(0, a.outputs - i); j < W; ++j) e[j] = 0;
            store(kept_output + i, e);
            total += e;
        }
        const float whole = sum(total);
        for (int i = 0; i < outputs_p; i += W) store(kept_output + i, load(kept_output + i) * (1.0f / whole));
        if (!scored(t, r) || !batch.targets) return 0;
        return std::log((double)whole) + ((double)top - target);
    }

    // Walks all steps; returns the summed loss. `logits` (T, B, outputs) is written where given.
    double forward(float* logits) {
        double loss = 0;
        start();
        for (int t = 0; t < T; ++t) {
            if (a.real_inputs) read_vectors(t);
            for (int l = 0; l < a.depth; ++l) forward_layer(l, t);
            if (!logits && !any_scored(t)) continue;
            std::vector<Segment>& s = terms_;
            s.clear();
            for (int l = 0; l < a.depth; ++l)
                if (plan.layers[l].output)
                    s.push_back(term(weights.layers[l].out, kept.layers[l].out.at(t + 1), kept.layers[l].out.row, plan.layers[l].h));
            output_product(s.data(), (int)s.size(), weights.output_bias);
            if (logits)
                for (int r = 0; r < valid; ++r)
                    std::memcpy(logits + ((size_t)t * batch.sequences + first + r) * a.outputs, work.logits.at(0, r), a.outputs * sizeof(float));
            for (int r = 0; r < rows; ++r) loss += score(t, r);
        }
        return loss;
    }

    // The states after the last step, one (B, h) per layer.
    void final_states(float* const* out, float* const* state) const {
        for (size_t l = 0; l < plan.layers.size(); ++l)
            for (int r = 0; r < valid; ++r)
                for (int u = 0; u < plan.layers[l].h; ++u) {
                    const size_t at = (size_t)(first + r) * plan.layers[l].h + u;
                    Vec value = load(kept.layers[l].out.at(T, r) + u / W * W);
                    out[l][at] = value[u % W];
                    if (Cell::gated && state) state[l][at] = work.layers[l].running.at(0, r)[u];
                }
    }

    // ---- tangent: R-forward in the direction, then the loss's Hessian on R(O(t)) ----
    void tangent_layer(int l, int t) {
        const LayerPlan& p = plan.layers[l];
        const auto& w = weights.layers[l];
        const auto& v = direction->layers[l];
        auto& k = kept.layers[l];
        auto& y = work.layers[l];
        const bool moving_input = p.from_below;  // R(I(t)) is not zero
        if (plan.factored) {
            if (!p.table) {
                Segment s[2];
                int n = 0;
                s[n++] = term(v.mi, input(l, t), input_row(l), p.inputs);
                if (moving_input) s[n++] = term(w.mi, work.layers[l - 1].tangent_out.at(t + 1), work.layers[l - 1].tangent_out.row, p.inputs);
                units_product(s, n, p.h, [&](int r, int u, Vec chi) { store(y.tangent_chi.at(0, r) + u, chi); });
            }
            // R(M) = R(chi) xi + chi (R(W_mh) H(t-1) + W_mh R(H(t-1)))
            Segment s[2] = {term(w.mh, y.tangent_out.at(t), y.tangent_out.row, p.h), term(v.mh, k.out.at(t), k.out.row, p.h)};
            units_product(s, 2, p.h, [&](int r, int u, Vec xi) {
                const float* chi = p.table ? v.mi_table + symbol(t, r) * p.hp : y.tangent_chi.at(0, r);
                store(y.tangent_m.at(0, r) + u, load(chi + u) * load(k.xi.at(t, r) + u) + load(chi_row(l, t, r) + u) * xi);
            });
        }
        Segment s[6];
        int n = 0;
        if (plan.factored) {
            s[n++] = term(w.rec, y.tangent_m.at(0), y.tangent_m.row, p.h);
            s[n++] = term(v.rec, k.m.at(t), k.m.row, p.h);
        } else {
            s[n++] = term(w.rec, y.tangent_out.at(t), y.tangent_out.row, p.h);
            s[n++] = term(v.rec, k.out.at(t), k.out.row, p.h);
        }
        if (p.below) {
            s[n++] = term(w.lower, work.layers[l - 1].tangent_out.at(t + 1), work.layers[l - 1].tangent_out.row, p.below);
            s[n++] = term(v.lower, kept.layers[l - 1].out.at(t + 1), kept.layers[l - 1].out.row, p.below);
        }
        if (!p.table) {
            s[n++] = term(v.in, input(l, t), input_row(l), p.inputs);
            if (moving_input) s[n++] = term(w.in, work.layers[l - 1].tangent_out.at(t + 1), work.layers[l - 1].tangent_out.row, p.inputs);
        }
        gates_product(s, n, p.h, [&](int r, int u, Vec* before) {
            const float* drive = table_row(*direction, l, t, r) + u;
            for (int g = 0; g < G; ++g) before[g] += load(drive + g * p.hp);
            Vec gate[G], state{}, state_before{}, carried{}, tangent_out;
            if constexpr (Cell::gated) {
                for (int g = 0; g < G; ++g) gate[g] = load(k.gate[g].at(t, r) + u);
                state = load(k.state.at(t + 1, r) + u);
                state_before = load(k.state.at(t, r) + u);
                carried = load(y.running.at(0, r) + u);
            }
            Cell::tangent(gate, state_before, state, load(k.out.at(t + 1, r) + u), before, a.squash_input, carried, tangent_out);
            if constexpr (Cell::gated) store(y.running.at(0, r) + u, carried);
            store(y.tangent_out.at(t + 1, r) + u, tangent_out);
            if (structural.mu != 0) {
                Vec tapped = structural.tap == tap_state && Cell::gated ? carried : tangent_out;
                store(y.tap.at(t, r) + u, r < valid ? tapped * structural.mu : Vec{});
            }
        });
    }

    void tangent() {
        for (auto& y : work.layers) {
            std::memset((void*)y.tangent_out.at(0), 0, y.tangent_out.step * sizeof(E));
            std::memset(y.running.at(0), 0, y.running.step * sizeof(float));
        }
        for (int t = 0; t < T; ++t) {
            for (int l = 0; l < a.depth; ++l) tangent_layer(l, t);
            if (!any_scored(t)) {
                std::memset((void*)work.delta_output.at(t), 0, work.delta_output.step * sizeof(E));
                continue;
            }
            std::vector<Segment>& s = terms_;
            s.clear();
            for (int l = 0; l < a.depth; ++l) {
                if (!plan.layers[l].output) continue;
                s.push_back(term(weights.layers[l].out, work.layers[l].tangent_out.at(t + 1), work.layers[l].tangent_out.row, plan.layers[l].h));
                s.push_back(term(direction->layers[l].out, kept.layers[l].out.at(t + 1), kept.layers[l].out.row, plan.layers[l].h));
            }
            output_product(s.data(), (int)s.size(), direction->output_bias);
            for (int r = 0; r < rows; ++r) {
                const float* z = work.logits.at(0, r);
                const float* q = kept.output.at(t, r);
                E* delta = work.delta_output.at(t, r);
                if (!scored(t, r)) {
                    for (int i = 0; i < outputs_p; i += W) store(delta + i, Vec{});
                } else if (a.squared_loss) {
                    for (int i = 0; i < outputs_p; i += W) store(delta + i, load(z + i) * (2.0f / a.outputs));
                } else {  // (diag(p) - p p') R(O)
                    Vec mean{};
                    for (int i = 0; i < outputs_p; i += W) mean += load(q + i) * load(z + i);
                    const float average = sum(mean);
                    for (int i = 0; i < outputs_p; i += W) store(delta + i, load(q + i) * (load(z + i) - average));
                }
            }
        }
    }

    // The cotangents of the outputs for a gradient: p - target, or 2 (z - y) / outputs.
    void gradient_deltas() {
        for (int t = 0; t < T; ++t)
            for (int r = 0; r < rows; ++r) {
                E* delta = work.delta_output.at(t, r);
                if (!scored(t, r)) {
                    for (int i = 0; i < outputs_p; i += W) store(delta + i, Vec{});
                    continue;
                }
                float* row = work.logits.at(0, 0);
                const float* q = kept.output.at(t, r);
                const size_t at = (size_t)t * batch.sequences + first + r;
                for (int i = 0; i < outputs_p; i += W) store(row + i, load(q + i));
                if (a.squared_loss)
                    for (int i = 0; i < a.outputs; ++i) row[i] = (row[i] - batch.values[at * a.outputs + i]) * (2.0f / a.outputs);
                else
                    row[batch.targets[at]] -= 1.0f;
                for (int i = 0; i < outputs_p; i += W) store(delta + i, load(row + i));
            }
    }

    // Cotangents of the outputs as given, (T, B, O).
    void given_deltas(const float* outputs) {
        float* row = work.logits.at(0, 0);
        for (int i = 0; i < outputs_p; i += W) store(row + i, Vec{});
        for (int t = 0; t < T; ++t)
            for (int r = 0; r < rows; ++r) {
                const size_t at = (size_t)t * batch.sequences + first + r;
                if (r < valid) std::memcpy(row, outputs + at * a.outputs, a.outputs * sizeof(float));
                else std::memset(row, 0, a.outputs * sizeof(float));
                for (int i = 0; i < outputs_p; i += W) store(work.delta_output.at(t, r) + i, load(row + i));
            }
    }

    // Probabilities, or outputs, of every step into (T, B, O).
    void predictions(float* to) const {
        for (int t = 0; t < T; ++t)
            for (int r = 0; r < valid; ++r)
                std::memcpy(to + ((size_t)t * batch.sequences + first + r) * a.outputs, kept.output.at(t, r),
                            a.outputs * sizeof(float));
    }

    // ---- adjoint ----
    void adjoint_layer(int l, int t, int slot) {
        const LayerPlan& p = plan.layers[l];
        const auto& w = weights.layers[l];
        auto& k = kept.layers[l];
        auto& y = work.layers[l];
        // The cotangent of H_out(t): from the outputs, from step t + 1, and from the layer above.
        std::vector<Segment>& s = terms_;
        s.clear();
        if (p.output) s.push_back(term(w.out_back, work.delta_output.at(t), work.delta_output.row, a.outputs));
        if (plan.factored)
            s.push_back(term(w.mh_back, y.delta_xi.at(slot + 1), y.delta_xi.row, p.h));
        else
            for (int g = 0; g < G; ++g) s.push_back(term(w.rec_back[g], y.delta[g].at(slot + 1), y.delta[g].row, p.h));
        if (l + 1 < a.depth) {
            const LayerPlan& q = plan.layers[l + 1];
            const auto& above = weights.layers[l + 1];
            auto& z = work.layers[l + 1];
            for (int g = 0; g < G; ++g)
                s.push_back(term(q.below ? above.lower_back[g] : above.in_back[g], z.delta[g].at(slot), z.delta[g].row, q.h));
            if (plan.factored && q.from_below) s.push_back(term(above.mi_back, z.delta_chi.at(slot), z.delta_chi.row, q.h));
        }
        float* rows_image = image + p.g_row;
        units_product(s.data(), (int)s.size(), p.h, [&](int r, int u, Vec delta_out) {
            Vec gate[G], state{}, state_before{}, carry{}, tapped{}, delta[G];
            if constexpr (Cell::gated) {
                for (int g = 0; g < G; ++g) gate[g] = load(k.gate[g].at(t, r) + u);
                state = load(k.state.at(t + 1, r) + u);
                state_before = load(k.state.at(t, r) + u);
                carry = load(y.running.at(0, r) + u);
            }
            if (structural.mu != 0) tapped = load(y.tap.at(t, r) + u);
            Cell::adjoint(gate, state_before, state, load(k.out.at(t + 1, r) + u), a.squash_input, structural, tapped, delta_out, carry, delta);
            if constexpr (Cell::gated) store(y.running.at(0, r) + u, carry);
            float* sums_of_symbol = rows_image + (p.table ? symbol(t, r) * G * p.hp : 0) + u;
            for (int g = 0; g < G; ++g) {
                store(y.delta[g].at(slot, r) + u, delta[g]);
                store(sums_of_symbol + g * p.hp, load(sums_of_symbol + g * p.hp) + delta[g]);
            }
        });
        if (!plan.factored) return;
        // delta M = sum over gates of W_*m' delta;  delta xi = chi * delta M;  delta chi = xi * delta M
        Segment back[G];
        for (int g = 0; g < G; ++g) back[g] = term(w.rec_back[g], y.delta[g].at(slot), y.delta[g].row, p.h);
        units_product(back, G, p.h, [&](int r, int u, Vec delta_m) {
            Vec delta_chi = delta_m * load(k.xi.at(t, r) + u);
            store(y.delta_xi.at(slot, r) + u, delta_m * load(chi_row(l, t, r) + u));
            if (p.table) {
                float* sums_of_symbol = image + p.g_mi + symbol(t, r) * p.hp + u;
                store(sums_of_symbol, load(sums_of_symbol) + delta_chi);
            }
            if (!p.table || traffic) store(y.delta_chi.at(slot, r) + u, delta_chi);
        });
    }

    // An operand of a weight gradient: `count` rows from `from` on. bf16 needs two rows side by side, lane by lane.
    struct Operand {
        const Unit* data;
        ptrdiff_t row;
        int steps;
    };
    Operand operand(const E* from, ptrdiff_t row, int count, int width, int side) {
        if constexpr (depth == 1) return {(const Unit*)from, row, count};
        else {
            Unit* out = work.pairs + side * work.pairs_size;
            const ptrdiff_t out_row = row_of<float>(width);
            const int wide = padded(width);
            for (int k = 0; k < count / 2; ++k) {
                const E *one = from + (size_t)2 * k * row, *two = one + row;
                Unit* place = out + k * out_row;
                for (int u = 0; u < wide; ++u) place[u] = (Unit)one[u] | (Unit)two[u] << 16;
            }
            return {out, out_row, count / 2};
        }
    }
    // image(i, j) += sum over rows of delta(row, i) * source(row, j)
    void outer(const E* delta, ptrdiff_t delta_row, int to, const Operand& source, int from, int count, size_t at) {
        Operand d = operand(delta, delta_row, count, to, 0);
        const Segment s = {d.data, 1, d.row, source.data, source.row, source.steps};
        const Cut cut(vectors_of(from));
        for (int p = 0; p < cut.panels; ++p)
            multiply<Kind>(&s, 1, cut.first(p), cut.size(p), (to + 3) / 4 * 4, image + at + cut.first(p) * W, padded(from), true);
    }

    // Weight gradients of the steps t0 … t0 + n - 1, whose deltas lie in slots 0 … n - 1.
    void weight_gradients(int t0, int n) {
        const int count = n * rows;
        for (int l = 0; l < a.depth; ++l) {
            const LayerPlan& p = plan.layers[l];
            auto& k = kept.layers[l];
            auto& y = work.layers[l];
            auto gates = [&](const E* from, ptrdiff_t row, int width, size_t at) {
                Operand source = operand(from, row, count, width, 1);
                for (int g = 0; g < G; ++g)
                    outer(y.delta[g].at(0), y.delta[g].row, p.h, source, width, count, at + (size_t)g * p.hp * padded(width));
            };
            if (plan.factored) {
                gates(k.m.at(t0), k.m.row, p.h, p.g_rec);
                outer(y.delta_xi.at(0), y.delta_xi.row, p.h, operand(k.out.at(t0), k.out.row, count, p.h, 1), p.h, count, p.g_mh);
                if (!p.table)
                    outer(y.delta_chi.at(0), y.delta_chi.row, p.h, operand(input(l, t0), input_row(l), count, p.inputs, 1), p.inputs, count, p.g_mi);
            } else {
                gates(k.out.at(t0), k.out.row, p.h, p.g_rec);
            }
            if (p.below) gates(kept.layers[l - 1].out.at(t0 + 1), kept.layers[l - 1].out.row, p.below, p.g_lower);
            if (!p.table) gates(input(l, t0), input_row(l), p.inputs, p.g_in);
            if (p.output)
                outer(work.delta_output.at(t0), work.delta_output.row, a.outputs, operand(k.out.at(t0 + 1), k.out.row, count, p.h, 1), p.h, count, p.g_out);
        }
        if (plan.output_bias >= 0)
            for (int t = t0; t < t0 + n; ++t)
                for (int r = 0; r < rows; ++r)
                    for (int i = 0; i < outputs_p; i += W) {
                        float* place = image + plan.g_output_bias + i;
                        store(place, load(place) + load(work.delta_output.at(t, r) + i));
                    }
    }

    void adjoint() {
        for (auto& y : work.layers) std::memset(y.running.at(0), 0, y.running.step * sizeof(float));
        for (int end = T; end > 0;) {
            const int n = std::min(chunk, end), t0 = end - n;
            for (auto& y : work.layers) carry_over(y, n, end == T);
            for (int t = end - 1; t >= t0; --t)
                for (int l = a.depth - 1; l >= 0; --l) adjoint_layer(l, t, t - t0);
            if (traffic) hand_over(t0, n);
            else weight_gradients(t0, n);
            end = t0;
        }
    }

   private:
    std::vector<Segment> terms_;

    // Row r of `from`, at step t, into a tensor (·, B, width) at columns `column` …
    void copy_row(const E* from, float* to, int t, int r, int width, int column, int h) const {
        float* place = to + ((size_t)t * batch.sequences + first + r) * width + column;
        for (int u = 0; u < h; u += W) {
            const Vec value = load(from + u);
            std::memcpy(place + u, &value, std::min(W, h - u) * sizeof(float));
        }
    }
    void hand_over(int t0, int n) const {
        for (int l = 0; l < a.depth; ++l) {
            const int h = plan.layers[l].h;
            auto& k = kept.layers[l];
            auto& y = work.layers[l];
            for (int t = t0; t < t0 + n; ++t)
                for (int r = 0; r < valid; ++r) {
                    for (int g = 0; g < G; ++g) copy_row(y.delta[g].at(t - t0, r), traffic->gates[l], t, r, G * h, g * h, h);
                    copy_row(k.out.at(t + 1, r), traffic->out[l], t + 1, r, h, 0, h);
                    if (t == 0) copy_row(k.out.at(0, r), traffic->out[l], 0, r, h, 0, h);
                    if (!plan.factored) continue;
                    copy_row(y.delta_xi.at(t - t0, r), traffic->xi[l], t, r, h, 0, h);
                    copy_row(y.delta_chi.at(t - t0, r), traffic->chi[l], t, r, h, 0, h);
                    copy_row(k.m.at(t, r), traffic->m[l], t, r, h, 0, h);
                }
        }
    }

    // The deltas of the step after a chunk: slot 0 of the chunk before it moves to slot n (zeros at the end of time).
    void carry_over(typename Work<Kind>::Layer& y, int n, bool last) {
        auto move = [&](Field<E>& f) {
            if (!f.base) return;
            if (last) std::memset((void*)f.at(n), 0, f.step * sizeof(E));
            else std::memcpy((void*)f.at(n), (const void*)f.at(0), f.step * sizeof(E));
        };
        for (auto& d : y.delta) move(d);
        move(y.delta_xi);
    }
};

}  // namespace rn
