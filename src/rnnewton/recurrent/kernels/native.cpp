// The C interface over raw pointers, and the walk over tiles that it hides. interface.py mirrors it.
//
// A chunk is one block of (T, B) sequences at fixed weights. Tiles and the slots in which their gradients are summed
// depend on the sizes only, and slots are added in order: results do not depend on the number of threads.
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>
#include <tuple>

#include "memory.h"
#include "online.h"
#include "passes.h"
#include "stream.h"

namespace rn {

struct Span {
    int first, valid, rows;
};

// Tiles of at most `most` rows, in whole quads, as even as possible; a multiple of 8 tiles where that leaves 8 rows each.
inline std::vector<Span> tiles_of(int sequences, int most) {
    const int quads = (sequences + 3) / 4;
    int tiles = (quads + most / 4 - 1) / (most / 4);
    tiles = std::max(1, std::min((tiles + 7) / 8 * 8, quads / 2));
    std::vector<Span> spans;
    for (int i = 0, first = 0; i < tiles; ++i) {
        const int rows = 4 * (quads / tiles + (i < quads % tiles));
        spans.push_back({first, std::min(rows, sequences - first), rows});
        first += rows;
    }
    return spans;
}

struct Chunk {
    virtual ~Chunk() = default;
    virtual double forward(float* logits, float* const* out, float* const* state) = 0;
    virtual double gradient(float* into) = 0;
    virtual void product(const float* v, float* into, const Structural& structural) = 0;
    virtual void traffic(const Traffic& traffic) = 0;
    virtual void predictions(float* to) = 0;
    virtual void keep() = 0;
    virtual size_t stored_bytes() const = 0;
    virtual size_t workspace_bytes(bool keeping) const = 0;
};

template <class Cell, class Kind>
struct ChunkOf final : Chunk {
    Plan plan;
    Batch batch;
    int threads;
    bool stored;
    std::vector<Span> tiles;
    int most_rows = 0, slots;
    const float* flat;
    Packed<Kind> weights;
    Memory packed, packed_back;
    std::vector<Memory> kept;  // one per tile where activations are stored
    size_t kept_size = 0, work_size = 0, forward_size = 0;

    ChunkOf(const Architecture& a, const Batch& b, const float* flat, int threads)
        : plan(a), batch(b), threads(threads), stored(false), tiles(tiles_of(b.sequences, 32)), flat(flat) {
        for (const Span& s : tiles) most_rows = std::max(most_rows, s.rows);
        const size_t image_bytes = plan.image * sizeof(float);
        slots = std::min<int>((int)tiles.size(), (int)std::max<size_t>(4, std::min<size_t>(16, (128u << 20) / image_bytes)));
        packed = pack(weights, flat, false);
        const Span widest{0, 0, most_rows};
        kept_size = lay_kept(widest, nullptr, nullptr, true);
        work_size = lay_work(widest, nullptr, nullptr, true);
        forward_size = lay_kept(widest, nullptr, nullptr, false) + lay_work(widest, nullptr, nullptr, false);
    }

    // Steps whose deltas are summed together: about 256 rows.
    int chunk(int rows) const { return std::max(1, std::min<int>(batch.steps, 256 / rows)); }

    size_t lay_kept(const Span& span, char* base, Kept<Kind>* into, bool keep) const {
        Arena arena{base};
        Kept<Kind> scratch;
        (into ? into : &scratch)->lay(plan, arena, batch.steps, span.rows, keep);
        return arena.used;
    }
    size_t lay_work(const Span& span, char* base, Work<Kind>* into, bool backward) const {
        Arena arena{base};
        Work<Kind> scratch;
        (into ? into : &scratch)->lay(plan, arena, batch.steps, span.rows, chunk(span.rows), backward);
        return arena.used;
    }
    Memory pack(Packed<Kind>& into, const float* from, bool backward) const {
        std::vector<std::function<void()>> jobs;
        auto lay = [&](Arena& arena) {
            if (backward) into.lay_back(plan, from, arena, jobs);
            else into.lay(plan, from, arena, jobs);
        };
        Arena count{nullptr};
        lay(count);
        Memory memory(count.used);
        jobs.clear();
        Arena arena{memory.data()};
        lay(arena);
        parallel((int)jobs.size(), threads, [&](int i) { jobs[i](); });
        return memory;
    }
    Tile<Cell, Kind> tile(const Span& s, const Packed<Kind>* direction) const {
        return {plan, weights, direction, batch, s.first, s.valid, s.rows, chunk(s.rows)};
    }

    double forward(float* logits, float* const* out, float* const* state) override {
        if (stored && kept.empty())  // activations stay from here on
            for (const Span& s : tiles) kept.emplace_back(lay_kept(s, nullptr, nullptr, true));
        std::vector<double> losses(tiles.size());
        parallel((int)tiles.size(), threads, [&](int i) {
            auto walk = tile(tiles[i], nullptr);
            Memory memory(forward_size);
            char* free = memory.data();
            free += lay_work(tiles[i], free, &walk.work, false);
            lay_kept(tiles[i], stored ? kept[i].data() : free, &walk.kept, stored);
            losses[i] = walk.forward(logits);
            if (out) walk.final_states(out, state);
        });
        double loss = 0;
        for (double x : losses) loss += x;
        return loss;
    }

    // Runs the adjoint over all tiles, `before` having prepared the cotangents of the outputs; adds into the flat vector.
    template <class Before>
    double backward(float* into, const Packed<Kind>* direction, const Structural& structural, Before&& before) {
        if (!packed_back.data()) packed_back = pack(weights, flat, true);
        const size_t image = plan.image;
        Memory images(image * slots * sizeof(float));
        float* sums = (float*)images.data();
        std::vector<double> losses(tiles.size());
        parallel(slots, threads, [&](int slot) {
            Memory memory(work_size + (stored ? 0 : kept_size));
            std::memset(sums + slot * image, 0, image * sizeof(float));
            for (size_t i = slot; i < tiles.size(); i += slots) {
                auto walk = tile(tiles[i], direction);
                walk.image = sums + slot * image;
                walk.structural = structural;
                lay_work(tiles[i], memory.data(), &walk.work, true);
                lay_kept(tiles[i], stored ? kept[i].data() : memory.data() + work_size, &walk.kept, true);
                if (!stored) losses[i] = walk.forward(nullptr);
                before(walk);
                walk.adjoint();
            }
        });
        double loss = 0;
        for (double x : losses) loss += x;
        if (!into) return loss;
        const int pieces = 64;
        parallel(pieces, threads, [&](int piece) {
            const size_t from = image / 16 * piece / pieces * 16, to = piece + 1 == pieces ? image : image / 16 * (piece + 1) / pieces * 16;
            for (int s = 1; s < slots; ++s)
                for (size_t i = from; i < to; i += W) store(sums + i, load(sums + i) + load(sums + s * image + i));
        });
        parallel((int)plan.layers.size(), threads, [&](int l) { add_image(plan, sums, into, l); });
        return loss;
    }

    double gradient(float* into) override {
        return backward(into, nullptr, {}, [](Tile<Cell, Kind>& walk) { walk.gradient_deltas(); });
    }

    void product(const float* v, float* into, const Structural& structural) override {
        Packed<Kind> direction;
        Memory memory = pack(direction, v, false);
        backward(into, &direction, structural, [](Tile<Cell, Kind>& walk) { walk.tangent(); });
    }

    void traffic(const Traffic& traffic) override {
        backward(nullptr, nullptr, {}, [&](Tile<Cell, Kind>& walk) {
            walk.traffic = &traffic;
            walk.given_deltas(traffic.outputs);
        });
    }

    void predictions(float* to) override {
        for (size_t i = 0; i < kept.size(); ++i) {
            auto walk = tile(tiles[i], nullptr);
            lay_kept(tiles[i], kept[i].data(), &walk.kept, true);
            walk.predictions(to);
        }
    }

    void keep() override { stored = true; }
    size_t stored_bytes() const override {
        size_t total = 0;
        for (const Span& s : tiles) total += lay_kept(s, nullptr, nullptr, true);
        return total;
    }
    size_t workspace_bytes(bool keeping) const override {
        const int at_once = std::min(threads, slots);
        return at_once * (work_size + (keeping ? 0 : kept_size)) + slots * plan.image * sizeof(float);
    }
};

template <class Kind>
Chunk* open_kind(const Architecture& a, const Batch& b, const float* flat, int threads) {
    switch (a.cell) {
        case 0: case 3: return new ChunkOf<Plain, Kind>(a, b, flat, threads);
        case 1: case 4: return new ChunkOf<Gated<true>, Kind>(a, b, flat, threads);
        case 2: return new ChunkOf<Gated<false>, Kind>(a, b, flat, threads);
    }
    return nullptr;
}

// Keeps the compiler from knowing what is in a register.
#if defined(__x86_64__)
#define RN_OPAQUE(x) asm volatile("" : "+v"(x))
#else
#define RN_OPAQUE(x) asm volatile("" : "+w"(x))
#endif

// Multiply-adds into 12 sums of their own: enough to hide the latency of two a cycle. Returns the operations done.
template <class Kind>
double peak(int threads, int64_t rounds) {
    parallel(threads, threads, [&](int) {
        Vec sums[12] = {};
        typename Kind::Panel a{}, b{};
        for (Vec& x : sums) RN_OPAQUE(x);
        for (int64_t i = 0; i < rounds; ++i) {
            RN_OPAQUE(a);
            RN_OPAQUE(b);
#pragma GCC unroll 12
            for (int j = 0; j < 12; ++j) sums[j] = Kind::multiply_add(sums[j], a, b);
        }
        for (Vec& x : sums) RN_OPAQUE(x);
    });
    return (double)threads * rounds * 12 * W * 2 * Kind::depth;
}

}  // namespace rn

#define RN_API extern "C" __attribute__((visibility("default")))

// precision: 0 fp32, 1 bf16 matrix operands. Returns null when there is no memory or the cell is not known.
RN_API void* rn_open(const rn::Architecture* a, const rn::Batch* b, const float* flat, int precision, int threads) {
    try {
        return precision ? rn::open_kind<rn::Bf16>(*a, *b, flat, threads) : rn::open_kind<rn::Fp32>(*a, *b, flat, threads);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
RN_API void rn_close(void* chunk) { delete (rn::Chunk*)chunk; }

// The calls below return 0, or 1 when memory ran out. Sums, not means: the caller divides by n.
template <class Call>
static int guarded(Call&& call) {
    try {
        call();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
RN_API int rn_forward(void* chunk, double* loss, float* logits, float* const* out, float* const* state) {
    return guarded([&] { *loss = ((rn::Chunk*)chunk)->forward(logits, out, state); });
}
RN_API int rn_gradient(void* chunk, float* into, double* loss) {
    return guarded([&] { *loss = ((rn::Chunk*)chunk)->gradient(into); });
}
RN_API int rn_product(void* chunk, const float* v, float* into, float mu, int form, int tap) {
    return guarded([&] { ((rn::Chunk*)chunk)->product(v, into, {mu, form, tap}); });
}
// One stream: `read` leaves the outputs of every symbol in `logits` (count, O) unless that is null.
RN_API void* rn_stream_open(const rn::Architecture* a, const float* flat) {
    try {
        return rn::open_stream(*a, flat);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
RN_API void rn_stream_close(void* stream) { delete (rn::Stream*)stream; }
RN_API int rn_stream_read(void* stream, const int64_t* ids, int count, float* logits) {
    return guarded([&] { ((rn::Stream*)stream)->read(ids, count, logits); });
}
RN_API void rn_stream_state(void* stream, float* const* out, float* const* cell, int set) {
    ((rn::Stream*)stream)->state(out, cell, set);
}
RN_API int64_t rn_stream_draw(void* stream, double level, const uint8_t* allowed, double temperature) {
    return ((rn::Stream*)stream)->draw(level, allowed, temperature);
}
RN_API int rn_learn_online(const rn::OnlineTask* task, double* loss) {
    return guarded([&] { *loss = rn::learn_online(*task); });
}

// From now on activations are stored; to be called before the forward pass.
RN_API void rn_keep(void* chunk) { ((rn::Chunk*)chunk)->keep(); }
RN_API int rn_traffic(void* chunk, const rn::Traffic* traffic) {
    return guarded([&] { ((rn::Chunk*)chunk)->traffic(*traffic); });
}
// Probabilities (softmax) or outputs (squared) of a chunk that stores its activations, (T, B, O).
RN_API void rn_predictions(void* chunk, float* to) { ((rn::Chunk*)chunk)->predictions(to); }
RN_API int64_t rn_parameters(const rn::Architecture* a) { return rn::Plan(*a).size; }
RN_API int64_t rn_stored_bytes(void* chunk) { return (int64_t)((rn::Chunk*)chunk)->stored_bytes(); }
RN_API int64_t rn_workspace_bytes(void* chunk, int keeping) {
    return (int64_t)((rn::Chunk*)chunk)->workspace_bytes(keeping);
}
RN_API void rn_release() { rn::Shelf::only().release(); }
RN_API int rn_vector_bytes() { return rn::vector_bytes; }
RN_API int rn_fast_bf16() {
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}
// Runs `rounds` rounds of independent multiply-adds on each thread; returns the operations done (the caller times).
RN_API double rn_peak(int precision, int threads, int64_t rounds) {
    return precision ? rn::peak<rn::Bf16>(threads, rounds) : rn::peak<rn::Fp32>(threads, rounds);
}
