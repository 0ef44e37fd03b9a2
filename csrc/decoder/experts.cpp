// The mixture of experts of a layer. Rows are grouped by expert, so that an expert's weights are read once a step, and
// only if a row needs them; each slot is computed as if it were alone.
//
// Regions: pack(norm(x)) | router | route | group | gather | gate, up of all experts | pack | down of all experts |
// [gate, up | pack | down of the shared expert |] output +=
#include "decoder/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "decoder/decoder.h"

namespace hotseat {

namespace {

// Mark the `count` highest of values[n], of equal ones the first.
void mark_highest(const float* values, int n, int count, std::vector<int>& order, uint8_t* marks) {
    std::iota(order.begin(), order.begin() + n, 0);
    // NaN counts as the lowest: the order must be one, whatever the values are.
    const auto key = [&](int i) { return std::isnan(values[i]) ? -std::numeric_limits<float>::infinity() : values[i]; };
    std::partial_sort(order.begin(), order.begin() + count, order.begin() + n, [&](int a, int b) {
        const float first = key(a), second = key(b);
        return first > second || (first == second && a < b);
    });
    std::fill_n(marks, n, uint8_t{0});
    for (int i = 0; i < count; ++i) marks[order[i]] = 1;
}

// Experts outside the best groups cannot be chosen: a group counts by the sum of its two highest.
void keep_best_groups(const ExpertsShape& shape, RoutingScratch& scratch) {
    const int size = shape.count / shape.num_groups;
    float* choice = scratch.choice.data();
    for (int group = 0; group < shape.num_groups; ++group) {
        const float* own = choice + group * size;
        float highest = -std::numeric_limits<float>::infinity(), second = highest;
        for (int i = 0; i < size; ++i) {
            if (own[i] > highest)
                second = std::exchange(highest, own[i]);
            else if (own[i] > second)
                second = own[i];
        }
        scratch.sorted[group] = highest + second;
    }
    mark_highest(scratch.sorted.data(), shape.num_groups, shape.groups_per_token, scratch.order,
                 scratch.is_chosen.data());
    for (int group = 0; group < shape.num_groups; ++group)
        if (!scratch.is_chosen[group])
            std::fill_n(choice + group * size, size, -std::numeric_limits<float>::infinity());
}

}  // namespace

void route(const KernelTable& kernels, const ExpertsShape& shape, const std::vector<float>& selection_bias,
           float* logits, RoutingScratch& scratch, int32_t* chosen, float* weights) {
    const int n = shape.count;
    for (auto* values : {&scratch.scores, &scratch.choice, &scratch.sorted}) values->resize(n);
    scratch.order.resize(n);
    scratch.is_chosen.resize(n);
    float* scores = scratch.scores.data();
    std::copy_n(logits, n, scores);
    float total = 1.0f;
    if (shape.is_sigmoid) {
        kernels.sigmoid(scores, n);
    } else {
        kernels.exponentials(scores, n, kernels.maximum(logits, n));
        total = std::accumulate(scores, scores + n, 0.0f);
    }
    const bool by_logit = !shape.is_sigmoid && selection_bias.empty();
    for (int i = 0; i < n; ++i) scratch.choice[i] = by_logit ? logits[i] : scores[i] / total;
    if (!selection_bias.empty()) kernels.add_scaled(scratch.choice.data(), selection_bias.data(), n, 1.0f);
    if (shape.groups_per_token < shape.num_groups) keep_best_groups(shape, scratch);
    mark_highest(scratch.choice.data(), n, shape.per_token, scratch.order, scratch.is_chosen.data());
    int count = 0;
    for (int i = 0; i < n; ++i)
        if (scratch.is_chosen[i]) chosen[count++] = i;
    if (shape.renormalizes) {
        total = 0.0f;
        for (int i = 0; i < count; ++i) total += scores[chosen[i]];
    }
    for (int i = 0; i < count; ++i) weights[i] = scores[chosen[i]] / std::max(total, 1e-20f) * shape.scale;
}

// Memory that only models with experts need.
void Decoder::reserve_expert_buffers() {
    const ExpertsShape& shape = shape_.experts;
    if (shape.count == 0 || expert_out_.size() > 0) return;
    const size_t tokens = limits_.max_num_batched_tokens, slots = tokens * shape.per_token;
    const size_t hidden = shape_.hidden_size, inner = shape.intermediate_size;
    router_rows_ = PackedMemory(tokens, packed_row_bytes(WeightMode::fp32, shape_.hidden_size));
    router_logits_ = Memory(tokens * (shape.count + 1) * sizeof(float));
    expert_rows_ = PackedMemory(slots, packed_.stride);
    expert_inner_ = Memory(slots * inner * (is_fused_mlp_ ? 1 : shape_.gated ? 2 : 1) * sizeof(float));
    expert_out_ = Memory(slots * hidden * sizeof(float));
    chosen_.resize(slots);
    chosen_weights_.resize(slots);
    slot_of_.resize(slots);
    row_of_slot_.resize(slots);
    expert_of_slot_.resize(slots);
}

void Decoder::run_experts(int index, int worker) {
    const Layer& layer = layers_[index];
    const Experts& own = layer.experts;
    const int rows = counts_.num_tokens, hidden = shape_.hidden_size, inner = shape_.experts.intermediate_size;
    choose_experts(layer, worker);
    pool_.for_each(1, worker, [&](int, int) { group_by_expert(own); });
    const int slots = rows * shape_.experts.per_token;
    for_rows(slots, worker, [&](int slot, int) { gather_slot(slot, row_of_slot_[slot]); });
    count(Work::pack, worker);
    const int raw_stride = is_fused_mlp_ || !shape_.gated ? inner : 2 * inner;
    multiply_experts(gate_up_groups_, num_gate_up_items_, worker, expert_inner_.as<float>(), raw_stride,
                     is_fused_mlp_ ? Epilogue::swiglu : Epilogue::store,
                     [&](int expert) -> const Linear& { return own.experts[expert].gate_up; });
    for_rows(slots, worker, [&](int slot, int who) {
        const Expert& expert = own.experts[expert_of_slot_[slot]];
        float* raw = expert_inner_.as<float>() + static_cast<size_t>(slot) * raw_stride;
        float* values = is_fused_mlp_ ? raw : scratch_[who].row.data();
        if (!is_fused_mlp_) activate_row(expert.gate_bias, expert.up_bias, inner, raw, values);
        expert.down.pack_row(kernels_, values, expert_rows_.rows(), slot);
    });
    count(Work::pack, worker);
    multiply_experts(down_groups_, num_down_items_, worker, expert_out_.as<float>(), hidden, Epilogue::store,
                     [&](int expert) -> const Linear& { return own.experts[expert].down; });
    if (own.shared_down.num_outputs() > 0) {
        run_gated(own.shared_gate_up, {}, {}, shape_.experts.shared_intermediate_size, own.shared_down, worker);
        multiply(own.shared_down, worker, rows, mlp_delta_.as<float>(), hidden, Epilogue::store);
    }
    for_rows(rows, worker, [&](int row, int who) { add_experts(layer, row, scratch_[who].row.data()); });
    count(Work::pack, worker);
}

// Pack norm(x) for the router and the experts, and choose each row's experts.
void Decoder::choose_experts(const Layer& layer, int worker) {
    const int rows = counts_.num_tokens, hidden = shape_.hidden_size;
    const Norm& norm = shape_.has_mlp_norm ? layer.mlp_norm : layer.attention_norm;
    const Experts& own = layer.experts;
    for_rows(rows, worker, [&](int row, int who) {
        float* normed = scratch_[who].row.data();
        normed_row(norm, x_.as<float>() + static_cast<size_t>(row) * hidden, normed);
        own.router.pack_row(kernels_, normed, router_rows_.rows(), row);
        own.experts[0].gate_up.pack_row(kernels_, normed, packed_, row);
    });
    count(Work::pack, worker);
    const int num_logits = own.router.num_outputs();
    pool_.for_each(own.router.num_items(rows), worker, [&](int item, int) {
        own.router.compute(kernels_, router_rows_.rows(), rows, router_logits_.as<float>(), num_logits, Epilogue::store,
                           item);
    });
    count(Work::linear, worker);
    const int per_token = shape_.experts.per_token;
    for_rows(rows, worker, [&](int row, int who) {
        float* logits = router_logits_.as<float>() + static_cast<size_t>(row) * num_logits;
        add_bias(own.router_bias, logits);
        route(kernels_, shape_.experts, own.selection_bias, logits, scratch_[who].routing,
              chosen_.data() + static_cast<size_t>(row) * per_token,
              chosen_weights_.data() + static_cast<size_t>(row) * per_token);
    });
}

// Give each row its slots, and list the groups and their items of work.
void Decoder::group_by_expert(const Experts& own) {
    const int per_token = shape_.experts.per_token, num_chosen = counts_.num_tokens * per_token;
    std::vector<int>& first = first_slot_;
    first.assign(shape_.experts.count + 1, 0);
    for (int i = 0; i < num_chosen; ++i) ++first[chosen_[i] + 1];
    gate_up_groups_.clear();
    down_groups_.clear();
    num_gate_up_items_ = num_down_items_ = 0;
    for (int expert = 0; expert < shape_.experts.count; ++expert) {
        const int size = first[expert + 1];
        first[expert + 1] += first[expert];
        if (size == 0) continue;
        gate_up_groups_.push_back({expert, first[expert], size, num_gate_up_items_});
        down_groups_.push_back({expert, first[expert], size, num_down_items_});
        num_gate_up_items_ += own.experts[expert].gate_up.num_items(size);
        num_down_items_ += own.experts[expert].down.num_items(size);
    }
    num_experts_read_ += static_cast<int>(down_groups_.size());
    for (int i = 0; i < num_chosen; ++i) {
        const int slot = first[chosen_[i]]++;
        slot_of_[i] = slot;
        row_of_slot_[slot] = i / per_token;
        expert_of_slot_[slot] = chosen_[i];
    }
}

void Decoder::gather_slot(int slot, int row) {
    const PackedRows to = expert_rows_.from(slot);
    std::memcpy(to.values, packed_.values + row * packed_.stride, packed_row_bytes(mode_, shape_.hidden_size));
    *to.scale = packed_.scale[row];
    *to.sum = packed_.sum[row];
}

template <class LinearOf>
void Decoder::multiply_experts(const std::vector<ExpertGroup>& groups, int num_items, int worker, float* out,
                               size_t stride, Epilogue epilogue, LinearOf&& linear_of) {
    pool_.for_each(num_items, worker, [&](int item, int) {
        const auto after = std::upper_bound(groups.begin(), groups.end(), item,
                                            [](int i, const ExpertGroup& group) { return i < group.first_item; });
        const ExpertGroup& group = *(after - 1);
        const size_t slot = group.first_slot;
        linear_of(group.expert)
            .compute(kernels_, expert_rows_.from(slot), group.num_slots, out + slot * stride, stride, epilogue,
                     item - group.first_item);
    });
    count(Work::linear, worker);
}

// Add what the experts made of a row to the residual stream: in the order of the experts, the shared one last.
void Decoder::add_experts(const Layer& layer, int row, float* total) {
    const Experts& own = layer.experts;
    const size_t hidden = shape_.hidden_size, per_token = shape_.experts.per_token;
    std::fill_n(total, hidden, 0.0f);
    for (size_t i = row * per_token; i < (row + 1) * per_token; ++i) {
        float* out = expert_out_.as<float>() + slot_of_[i] * hidden;
        add_bias(own.experts[chosen_[i]].down_bias, out);
        kernels_.add_scaled(total, out, shape_.hidden_size, chosen_weights_[i]);
    }
    if (own.shared_down.num_outputs() > 0) {
        float* shared = mlp_delta_.as<float>() + row * hidden;
        const int num_logits = own.router.num_outputs();
        if (own.weighs_shared()) {
            float weight = router_logits_.as<float>()[static_cast<size_t>(row) * num_logits + num_logits - 1];
            kernels_.sigmoid(&weight, 1);
            kernels_.scale(shared, shape_.hidden_size, weight);
        }
        kernels_.add_scaled(total, shared, shape_.hidden_size, 1.0f);
    }
    if (layer.mlp_post_norm.exists()) norm_row(layer.mlp_post_norm, total, total);
    add_to_residual(row, total);
}

}  // namespace hotseat
