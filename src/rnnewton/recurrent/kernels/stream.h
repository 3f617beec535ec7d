// One stream of symbols, read or written one after the other: the tile with a single sequence, its packed weights and
// its state kept between calls. Drawing symbols happens here, so that a sample is not bound by the interpreter.
#pragma once
#include <memory>

#include "memory.h"
#include "passes.h"

namespace rn {

struct Stream {
    virtual ~Stream() = default;
    virtual void read(const int64_t* ids, int count, float* logits) = 0;
    virtual void state(float* const* out, float* const* cell, bool set) = 0;
    virtual int64_t draw(double level, const uint8_t* allowed, double temperature) const = 0;
};

template <class Cell>
struct StreamOf final : Stream {
    Plan plan;
    Packed<Fp32> weights;
    Memory packed, memory;
    std::vector<std::vector<float>> out, cell;
    std::vector<float*> out_rows, cell_rows;
    std::vector<float> last;  // the outputs after the symbol read last

    StreamOf(const Architecture& a, const float* flat) : plan(a), last(a.outputs) {
        std::vector<std::function<void()>> jobs;
        Arena count{nullptr};
        weights.lay(plan, flat, count, jobs);
        packed = Memory(count.used);
        jobs.clear();
        Arena arena{packed.data()};
        weights.lay(plan, flat, arena, jobs);
        for (auto& job : jobs) job();
        for (const LayerPlan& p : plan.layers) {
            out.emplace_back(p.h);
            cell.emplace_back(p.h);
        }
        for (size_t l = 0; l < out.size(); ++l) {
            out_rows.push_back(out[l].data());
            cell_rows.push_back(cell[l].data());
        }
        Arena room{nullptr};
        Kept<Fp32>().lay(plan, room, 1, 4, false);
        Work<Fp32>().lay(plan, room, 1, 4, 1, false);
        memory = Memory(room.used);
    }

    void read(const int64_t* ids, int count, float* logits) override {
        FlushDenormals flush;
        Batch batch{};
        batch.steps = count;
        batch.sequences = 1;
        batch.ids = ids;
        batch.out = out_rows.data();
        batch.state = cell_rows.data();
        Tile<Cell, Fp32> walk(plan, weights, nullptr, batch, 0, 1, 4, 1);
        Arena room{memory.data()};
        walk.kept.lay(plan, room, 1, 4, false);
        walk.work.lay(plan, room, 1, 4, 1, false);
        std::vector<float> unused;
        if (!logits) {
            unused.resize((size_t)count * plan.a.outputs);
            logits = unused.data();
        }
        walk.forward(logits);
        walk.final_states(out_rows.data(), cell_rows.data());
        std::copy(logits + (size_t)(count - 1) * plan.a.outputs, logits + (size_t)count * plan.a.outputs, last.begin());
    }

    void state(float* const* to_out, float* const* to_cell, bool set) override {
        for (size_t l = 0; l < out.size(); ++l) {
            const size_t bytes = out[l].size() * sizeof(float);
            std::memcpy(set ? out_rows[l] : to_out[l], set ? to_out[l] : out_rows[l], bytes);
            if (Cell::gated) std::memcpy(set ? cell_rows[l] : to_cell[l], set ? to_cell[l] : cell_rows[l], bytes);
        }
    }

    // The symbol at `level` (0 … 1) of the cumulative distribution over the allowed ones, in double precision.
    // Temperature 0: the likeliest.
    int64_t draw(double level, const uint8_t* allowed, double temperature) const override {
        int64_t best = -1;
        for (int i = 0; i < plan.a.outputs; ++i)
            if (allowed[i] && (best < 0 || last[i] > last[best])) best = i;
        if (temperature == 0 || best < 0) return best;
        std::vector<double> cumulative(plan.a.outputs);
        double total = 0;
        int64_t chosen = best;
        for (int i = 0; i < plan.a.outputs; ++i) {
            if (allowed[i]) total += std::exp(((double)last[i] - last[best]) / temperature);
            cumulative[i] = total;
        }
        for (int i = 0; i < plan.a.outputs; ++i)
            if (allowed[i]) {
                chosen = i;
                if (cumulative[i] > level * total) break;
            }
        return chosen;
    }
};

inline Stream* open_stream(const Architecture& a, const float* flat) {
    switch (a.cell) {
        case 0: case 3: return new StreamOf<Plain>(a, flat);
        case 1: case 4: return new StreamOf<Gated<true>>(a, flat);
        case 2: return new StreamOf<Gated<false>>(a, flat);
    }
    return nullptr;
}

}  // namespace rn
