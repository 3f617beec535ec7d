// The original online learning of LSTM (chapter 2.2), one stream: after every symbol the weights move along the
// truncated gradient, for which each weight of a gate that feeds the state carries one trace.
//
//   h units · O outputs · S sources of a gate: I(t), H_out(t-1) [, 1] · G gates with a trace (hidden, input [, forget])
//   weights (G + 1, h, S), the output gate last; traces (G, h, S); rows are padded to whole vectors while we work
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "memory.h"
#include "vector.h"

namespace rn {

// Mirrored in interface.py.
struct OnlineTask {
    int32_t hidden, outputs, inputs, sources, traced, steps;
    int32_t squash, squared_loss, last_only;
    float rate, clip;
    const int64_t* ids;      // (T,), or null
    const float* vectors;    // (T, inputs), or null
    const int64_t* targets;  // (T,), or null
    const float* values;     // (T, outputs), or null
    float *gates, *readout, *output_bias, *traces, *out, *cell;  // changed in place
};

// `rows` rows of `width` floats in whole vectors; written back to where they came from.
struct Rows {
    std::vector<float> room;
    float *data, *home;
    int rows, width;
    ptrdiff_t row;
    Rows(float* home, int rows, int width) : home(home), rows(rows), width(width), row((width + W - 1) / W * W) {
        room.resize((size_t)rows * row + W);
        data = (float*)(((uintptr_t)room.data() + vector_bytes - 1) / vector_bytes * vector_bytes);
        for (int i = 0; home && i < rows; ++i) std::memcpy(at(i), home + (size_t)i * width, width * sizeof(float));
    }
    float* at(int i) const { return data + i * row; }
    void give_back() const {
        for (int i = 0; home && i < rows; ++i) std::memcpy(home + (size_t)i * width, at(i), width * sizeof(float));
    }
};

RN_INLINE float dot(const float* a, const float* b, ptrdiff_t n) {
    Vec one{}, two{};
    ptrdiff_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        one += load(a + i) * load(b + i);
        two += load(a + i + W) * load(b + i + W);
    }
    for (; i < n; i += W) one += load(a + i) * load(b + i);
    return sum(one + two);
}

inline float sigmoid_one(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Returns the loss summed over the scored steps, each at the weights before its update.
inline double learn_online(const OnlineTask& task) {
    FlushDenormals flush;
    const int h = task.hidden, O = task.outputs, G = task.traced, S = task.sources;
    Rows gates(task.gates, (G + 1) * h, S), readout(task.readout, O, h), bias(task.output_bias, 1, O);
    Rows traces(task.traces, G * h, S), out(task.out, 1, h), cell(task.cell, 1, h);
    Rows source(nullptr, 1, S), slopes(nullptr, G, h), z(nullptr, 1, O), d_z(nullptr, 1, O), d_out(nullptr, 1, h);
    Rows rho(nullptr, 1, h), phi(nullptr, 1, h), d_cell(nullptr, 1, h), d_rho(nullptr, 1, h);
    double loss = 0;
    for (int t = 0; t < task.steps; ++t) {
        float* x = source.at(0);
        std::fill(x, x + task.inputs, 0.0f);
        if (task.ids) x[task.ids[t]] = 1;
        else std::memcpy(x, task.vectors + (size_t)t * task.inputs, task.inputs * sizeof(float));
        std::memcpy(x + task.inputs, out.at(0), h * sizeof(float));
        if (S > task.inputs + h) x[S - 1] = 1;

        for (int u = 0; u < h; ++u) {  // forward, and dH_state(t) / d(pre-activation)
            float hidden = dot(gates.at(u), x, gates.row), slope = 1;
            const float omega = sigmoid_one(dot(gates.at(h + u), x, gates.row));
            if (task.squash) hidden = std::tanh(hidden), slope = 1 - hidden * hidden;
            const float before = cell.at(0)[u];
            const float forget = G == 3 ? sigmoid_one(dot(gates.at(2 * h + u), x, gates.row)) : 1.0f;
            const float open = sigmoid_one(dot(gates.at(G * h + u), x, gates.row));
            const float state = omega * hidden + forget * before;
            slopes.at(0)[u] = omega * slope;
            slopes.at(1)[u] = hidden * omega * (1 - omega);
            if (G == 3) slopes.at(2)[u] = before * forget * (1 - forget);
            phi.at(0)[u] = forget;
            rho.at(0)[u] = open;
            cell.at(0)[u] = state;
            out.at(0)[u] = std::tanh(state * open);
        }
        const bool scored = !task.last_only || t == task.steps - 1;
        float scale = 0;
        if (scored) {
            for (int i = 0; i < O; ++i) z.at(0)[i] = dot(readout.at(i), out.at(0), readout.row) + bias.at(0)[i];
            float* q = d_z.at(0);
            if (task.squared_loss) {
                for (int i = 0; i < O; ++i) {
                    const float error = z.at(0)[i] - task.values[(size_t)t * O + i];
                    loss += (double)error * error / O;
                    q[i] = error * (2.0f / O);
                }
            } else {
                const float top = *std::max_element(z.at(0), z.at(0) + O);
                double total = 0;
                for (int i = 0; i < O; ++i) total += q[i] = std::exp(z.at(0)[i] - top);
                for (int i = 0; i < O; ++i) q[i] = (float)(q[i] / total);
                loss += std::log(total) + top - z.at(0)[task.targets[t]];
                q[task.targets[t]] -= 1;
            }
            std::fill(d_out.at(0), d_out.at(0) + d_out.row, 0.0f);
            for (int i = 0; i < O; ++i)
                for (int u = 0; u < d_out.row; u += W)
                    store(d_out.at(0) + u, load(d_out.at(0) + u) + q[i] * load(readout.at(i) + u));
            for (int u = 0; u < h; ++u) {
                const float y = out.at(0)[u], open = rho.at(0)[u], d_zeta = d_out.at(0)[u] * (1 - y * y);
                d_cell.at(0)[u] = d_zeta * open;
                d_rho.at(0)[u] = d_zeta * cell.at(0)[u] * open * (1 - open);
            }
            scale = task.rate;
        }
        // Traces: e = phi e + slope * source; with clipping, the gradient's norm is needed before any weight moves.
        const bool clipped = scored && task.clip > 0;
        double square = 0;
        for (int g = 0; g < G; ++g)
            for (int u = 0; u < h; ++u) {
                float *e = traces.at(g * h + u), *w = gates.at(g * h + u);
                const float decay = phi.at(0)[u], slope = slopes.at(g)[u], move = scale * d_cell.at(0)[u];
                Vec squares{};
                for (ptrdiff_t i = 0; i < traces.row; i += W) {
                    const Vec next = decay * load(e + i) + slope * load(x + i);
                    store(e + i, next);
                    if (clipped) squares += next * next;
                    else store(w + i, load(w + i) - move * next);
                }
                if (clipped) square += (double)d_cell.at(0)[u] * d_cell.at(0)[u] * sum(squares);
            }
        if (!scored) continue;
        if (clipped) {
            square += (double)dot(d_rho.at(0), d_rho.at(0), d_rho.row) * dot(x, x, source.row);
            const float errors = dot(d_z.at(0), d_z.at(0), d_z.row);
            square += (double)errors * dot(out.at(0), out.at(0), out.row) + (task.output_bias ? errors : 0);
            scale *= std::min(1.0, task.clip / std::sqrt(square));
            for (int k = 0; k < G * h; ++k) {
                const float move = scale * d_cell.at(0)[k % h];
                for (ptrdiff_t i = 0; i < gates.row; i += W)
                    store(gates.at(k) + i, load(gates.at(k) + i) - move * load(traces.at(k) + i));
            }
        }
        for (int u = 0; u < h; ++u) {  // the output gate needs no trace
            float* w = gates.at(G * h + u);
            const float move = scale * d_rho.at(0)[u];
            for (ptrdiff_t i = 0; i < gates.row; i += W) store(w + i, load(w + i) - move * load(x + i));
        }
        for (int i = 0; i < O; ++i) {
            const float move = scale * d_z.at(0)[i];
            for (ptrdiff_t u = 0; u < readout.row; u += W)
                store(readout.at(i) + u, load(readout.at(i) + u) - move * load(out.at(0) + u));
            if (task.output_bias) bias.at(0)[i] -= move;
        }
    }
    for (const Rows* rows : {&gates, &readout, &bias, &traces, &out, &cell}) rows->give_back();
    return loss;
}

}  // namespace rn
