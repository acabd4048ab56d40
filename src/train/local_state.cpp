#include "train/local_state.h"

#include <vector>

namespace dmuon {

bool is_voted(const RuleTable& table, int parameter) {
  const int rule = table.rule_of[static_cast<size_t>(parameter)];
  return rule >= 0 && table.rules[static_cast<size_t>(rule)]->agreement() == Agreement::vote;
}

bool is_per_replica(const RuleTable& table, int parameter, const StateSpecification& state) {
  return state.local && is_voted(table, parameter);
}

int64_t checkpoint_bytes(const ShardedModel& model) {
  int64_t bytes = model.inventory().elements() * 4;
  const auto& parameters = model.inventory().parameters();
  for (size_t t = 0; t < parameters.size(); ++t) {
    const int rule = model.rules().rule_of[t];
    if (rule < 0) continue;
    for (const StateSpecification& state : model.rules().rules[static_cast<size_t>(rule)]->state())
      bytes += parameters[t].shape.elements() * 4 * (is_per_replica(model.rules(), static_cast<int>(t), state) ? model.grid().replicas : 1);
  }
  return bytes;
}

void read_local_state(const CheckpointReader& reader, std::string_view parameter, std::string_view state, int replica, int replicas,
                      int saved, int64_t first, std::span<float> values) {
  const auto read = [&](int from) {
    reader.read_tensor(state_key(parameter, state, from), first * 4, values.data(), static_cast<int64_t>(values.size()) * 4);
  };
  if (saved == replicas) {
    read(replica);
    return;
  }
  std::vector<double> sum(values.size(), 0.0);
  for (int from = 0; from < saved; ++from) {
    read(from);
    for (size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<double>(values[i]);
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(sum[i] / saved);
}

}  // namespace dmuon
