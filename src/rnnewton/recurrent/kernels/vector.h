// Vectors of single precision whose width follows the processor, by the compiler's vector extensions.
//
//   W      floats in one vector: 16 (AVX-512), 8 (AVX), 4 (SSE, NEON)
//   Vec    W floats            Bits   W unsigned 32-bit integers
//   Fp32   matrix operands are floats; one step of a product is one multiply-add
//   Bf16   matrix operands are bfloat16; one step is a dot product of two neighbours, summed in single precision
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rn {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64, vector_registers = 32;
#elif defined(__AVX__)
constexpr int vector_bytes = 32, vector_registers = 16;
#elif defined(__aarch64__)
constexpr int vector_bytes = 16, vector_registers = 32;
#else
constexpr int vector_bytes = 16, vector_registers = 16;
#endif
constexpr int W = vector_bytes / 4;

typedef float Vec __attribute__((vector_size(vector_bytes), may_alias));
typedef int32_t Ints __attribute__((vector_size(vector_bytes), may_alias));
typedef uint32_t Bits __attribute__((vector_size(vector_bytes), may_alias));
typedef uint16_t Halves __attribute__((vector_size(vector_bytes / 2), may_alias));

#define RN_INLINE inline __attribute__((always_inline))

RN_INLINE Vec fill(float x) { return x - Vec{}; }  // x - 0 is x, also for -0: the compiler makes it one broadcast
RN_INLINE Vec choose(Ints mask, Vec yes, Vec no) { return (Vec)(((Ints)yes & mask) | ((Ints)no & ~mask)); }
RN_INLINE Vec least(Vec a, Vec b) { return choose(a < b, a, b); }
RN_INLINE Vec greatest(Vec a, Vec b) { return choose(a > b, a, b); }

RN_INLINE float sum(Vec x) {
    float total = 0;
    for (int i = 0; i < W; ++i) total += x[i];
    return total;
}

// ---- bfloat16: the upper half of a float, rounded to the nearest even ----
typedef uint16_t bf16;

RN_INLINE Halves narrow(Vec x) {
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    Bits b = (Bits)x;
    return __builtin_convertvector((b + 0x7fffu + ((b >> 16) & 1u)) >> 16, Halves);
#endif
}
RN_INLINE Vec widen(Halves x) { return (Vec)(__builtin_convertvector(x, Bits) << 16); }

inline bf16 narrow_one(float x) {
    uint32_t b;
    std::memcpy(&b, &x, 4);
    return (bf16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

RN_INLINE Vec load(const float* p) { return *(const Vec*)p; }
RN_INLINE Vec load(const bf16* p) { return widen(*(const Halves*)p); }
RN_INLINE void store(float* p, Vec x) { *(Vec*)p = x; }
RN_INLINE void store(bf16* p, Vec x) { *(Halves*)p = narrow(x); }
inline void store_one(float* p, float x) { *p = x; }
inline void store_one(bf16* p, float x) { *p = narrow_one(x); }

// ---- the two kinds of matrix operands ----
struct Fp32 {
    using Element = float;
    using Unit = float;            // what one step broadcasts
    static constexpr int depth = 1;  // elements of the sum in one step
    using Panel = Vec;
    static RN_INLINE Panel spread(Unit a) { return fill(a); }
    static RN_INLINE Vec multiply_add(Vec sum, Panel a, Panel b) { return sum + a * b; }
    static Unit pair(const float* p, ptrdiff_t, int) { return *p; }
};

struct Bf16 {
    using Element = bf16;
    using Unit = uint32_t;  // two neighbours of the sum, the first in the lower half
    static constexpr int depth = 2;
    using Panel = Bits;
    static RN_INLINE Panel spread(Unit a) { return a - Bits{}; }
    static RN_INLINE Vec multiply_add(Vec sum, Panel a, Panel b) {
#if defined(__AVX512BF16__)
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
        sum += (Vec)(a << 16) * (Vec)(b << 16);
        return sum + (Vec)(a & 0xffff0000u) * (Vec)(b & 0xffff0000u);
#endif
    }
    // Two neighbours of the sum, `stride` floats apart; only the first where `left` is 1.
    static Unit pair(const float* p, ptrdiff_t stride, int left) {
        return narrow_one(p[0]) | (left > 1 ? (uint32_t)narrow_one(p[stride]) << 16 : 0u);
    }
};

// ---- exponential, sigmoid, tanh: a few units in the last place ----
// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, by the polynomial of the Cephes library.
RN_INLINE Vec exponential(Vec x) {
    x = least(greatest(x, fill(-87.0f)), fill(88.0f));
    const Vec magic = fill(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    Vec shifted = x * 1.44269504088896341f + magic;
    Vec n = shifted - magic;
    Vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vec p = fill(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    Ints exponent = ((Ints)shifted - (Ints)magic) << 23;
    return (Vec)((Ints)p + exponent);
}

RN_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exponential(-x)); }

// Small arguments by an odd polynomial (1 - 2/(exp(2x) + 1) would lose their digits), others by the exponential.
RN_INLINE Vec tanh(Vec x) {
    Vec size = (Vec)((Ints)x & 0x7fffffff);
    Vec square = x * x;
    Vec p = fill(-5.70498872745e-3f);
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    Vec small = p * square * x + x;
    Vec large = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    large = (Vec)((Ints)large | ((Ints)x & (Ints)((Bits{} + 0x80000000u))));
    return choose(size < 0.625f, small, large);
}

// Numbers below 1e-38 are flushed to zero while this lives: back-propagation over hundreds of steps makes them, and
// they are many times slower. The thread's own setting comes back afterwards.
class FlushDenormals {
   public:
    FlushDenormals() {
#if defined(__x86_64__)
        before_ = _mm_getcsr();
        _mm_setcsr(before_ | 0x8040);
#elif defined(__aarch64__)
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(before_ | (1ull << 24)));
#endif
    }
    ~FlushDenormals() {
#if defined(__x86_64__)
        _mm_setcsr(before_);
#elif defined(__aarch64__)
        asm volatile("msr fpcr, %0" : : "r"(before_));
#endif
    }

   private:
#if defined(__x86_64__)
    unsigned before_;
#else
    uint64_t before_ = 0;
#endif
};

}  // namespace rn
