// Mixtures of experts: their weights, and which experts a row gets. See ExpertsSpec in hotseat/models/spec.py.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "decoder/linear.h"

namespace hotseat {

struct ExpertsShape {
    int count = 0;  // 0: no layer has experts
    int per_token = 0;
    int intermediate_size = 0;
    bool is_sigmoid = false;  // scores are sigmoids, else a softmax
    bool renormalizes = true;
    float scale = 1.0f;
    int num_groups = 1;
    int groups_per_token = 1;
    int shared_intermediate_size = 0;  // 0: no shared expert
};

struct Expert {
    Linear gate_up;  // of a gated MLP, else up alone
    Linear down;
    std::vector<float> gate_bias, up_bias, down_bias;  // empty: none
};

struct Experts {
    // float32 in every mode: a row of logits for the experts, and one for the shared expert where it is weighted.
    Linear router;
    std::vector<float> router_bias, selection_bias;  // empty: none
    std::vector<Expert> experts;                     // empty: the layer has an MLP
    Linear shared_gate_up, shared_down;

    bool exist() const { return !experts.empty(); }
    bool weighs_shared() const { return router.num_outputs() > static_cast<int>(experts.size()); }
};

// Scratch of one worker: [count] each.
struct RoutingScratch {
    std::vector<float> scores, choice, sorted;
    std::vector<int> order;
    std::vector<uint8_t> is_chosen;
};

// Choose the experts of a row by its logits[count], which are destroyed: `chosen`[per_token] in ascending order, and
// their weights.
void route(const KernelTable& kernels, const ExpertsShape& shape, const std::vector<float>& selection_bias,
           float* logits, RoutingScratch& scratch, int32_t* chosen, float* weights);

// Rows of a batch grouped by expert. A slot is a row of one expert; the slots of an expert lie side by side, and its
// rows in the order of the batch.
struct ExpertGroup {
    int expert;
    int first_slot;
    int num_slots;
    int first_item;  // of work: all before it belong to other groups
};

}  // namespace hotseat
