// The pointwise part of each cell: what one block of W units does once the matrix products have run. A new cell is a
// struct like these two. All are values of one time step and one sequence, in registers:
//
//   before   what arrives at the gates (drive + products); R(.) and cotangents under the same names
//   hidden   H_in, input = omega, forget = phi, output = rho: the gates after their squashing
//   state    H_state(t), state_before H_state(t-1); out = H_out(t)
//   carry    phi(t+1) * (cotangent of H_state(t+1)), from the step after
#pragma once
#include "vector.h"

namespace rn {

enum Form { matching = 0, squared = 1 };   // S = 1 - H^2 at the last tanh's input, or 1 at H_out
enum Tap { tap_output = 0, tap_state = 1 };

// What the structural term adds: mu * S * R(.) at the place that form and tap name. Since R(H_out) =
// (1 - H^2) R(zeta), the matching form adds mu * R(H_out) at zeta; the squared form adds it at H_out.
struct Structural {
    float mu = 0;
    int form = matching, tap = tap_output;
};

// RNN, mRNN:  H = tanh(before)
struct Plain {
    static constexpr int gates = 1;
    static constexpr int kept = 0;   // stored values beside H_out
    static constexpr bool gated = false;

    static RN_INLINE void forward(const Vec* before, Vec, bool, Vec*, Vec&, Vec& out) { out = tanh(before[0]); }

    static RN_INLINE void tangent(const Vec*, Vec, Vec, Vec out, const Vec* before, bool, Vec&, Vec& tangent_out) {
        tangent_out = before[0] * (1.0f - out * out);
    }

    static RN_INLINE void adjoint(const Vec*, Vec, Vec, Vec out, bool, const Structural& structural, Vec tapped,
                                  Vec delta_out, Vec&, Vec* delta) {
        if (structural.mu != 0 && structural.form == squared) delta_out += tapped;
        delta[0] = delta_out * (1.0f - out * out);
        if (structural.mu != 0 && structural.form == matching) delta[0] += tapped;
    }
};

// LSTM, mLSTM, and the original LSTM without forget gates:
//   H_state = phi H_state(t-1) + omega H_in,  zeta = rho H_state,  H_out = tanh(zeta)
template <bool FORGET>
struct Gated {
    static constexpr int gates = FORGET ? 4 : 3;  // order: hidden, input, [forget,] output
    static constexpr int kept = gates;
    static constexpr bool gated = true;
    static constexpr int last = gates - 1;

    static RN_INLINE void forward(const Vec* before, Vec state_before, bool squash, Vec* gate, Vec& state, Vec& out) {
        gate[0] = squash ? tanh(before[0]) : before[0];
        for (int g = 1; g < gates; ++g) gate[g] = sigmoid(before[g]);
        state = gate[1] * gate[0] + (FORGET ? gate[2] * state_before : state_before);
        out = tanh(state * gate[last]);
    }

    // `state_before` holds H_state(t-1), `carried` R(H_state(t-1)) and, on return, R(H_state(t)).
    static RN_INLINE void tangent(const Vec* gate, Vec state_before, Vec state, Vec out, const Vec* before,
                                  bool squash, Vec& carried, Vec& tangent_out) {
        Vec hidden = squash ? before[0] * (1.0f - gate[0] * gate[0]) : before[0];
        Vec next = gate[1] * hidden + gate[0] * (before[1] * gate[1] * (1.0f - gate[1]));
        if constexpr (FORGET)
            next += gate[2] * carried + state_before * (before[2] * gate[2] * (1.0f - gate[2]));
        else
            next += carried;
        carried = next;
        Vec zeta = next * gate[last] + state * (before[last] * gate[last] * (1.0f - gate[last]));
        tangent_out = zeta * (1.0f - out * out);
    }

    static RN_INLINE void adjoint(const Vec* gate, Vec state_before, Vec state, Vec out, bool squash,
                                  const Structural& structural, Vec tapped, Vec delta_out, Vec& carry, Vec* delta) {
        const bool at_output = structural.mu != 0 && structural.tap == tap_output;
        if (at_output && structural.form == squared) delta_out += tapped;
        Vec zeta = delta_out * (1.0f - out * out);
        if (at_output && structural.form == matching) zeta += tapped;
        Vec delta_state = zeta * gate[last] + carry;
        if (structural.mu != 0 && structural.tap == tap_state) delta_state += tapped;
        delta[0] = gate[1] * delta_state;
        if (squash) delta[0] = delta[0] * (1.0f - gate[0] * gate[0]);
        delta[1] = gate[0] * delta_state * (gate[1] * (1.0f - gate[1]));
        if constexpr (FORGET) {
            delta[2] = state_before * delta_state * (gate[2] * (1.0f - gate[2]));
            carry = gate[2] * delta_state;
        } else {
            carry = delta_state;
        }
        delta[last] = zeta * state * (gate[last] * (1.0f - gate[last]));
    }
};

}  // namespace rn
