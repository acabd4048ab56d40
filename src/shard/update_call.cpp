#include "shard/update_call.h"

namespace dmuon {

std::vector<UpdateItem> items_of(const ShardJob& job, UnitStore& store, const UpdateCall& call, const std::vector<Tensor>& gathered) {
  const UpdateRule& rule = *job.rules.rules[static_cast<size_t>(call.rule)];
  std::vector<UpdateItem> items;
  for (size_t index : call.targets) {
    const UpdateTarget& target = store.targets()[index];
    const ParameterDeclaration& parameter = job.parameter(target.tensor);
    const bool all = target.count == parameter.shape.elements();
    const Shape shape = all ? update_shape(rule, parameter.name, parameter.shape, parameter.heads) : Shape{target.count};
    const Tensor gradient =
        target.gradient.defined() ? target.gradient : gathered[static_cast<size_t>(target.unit)].flat(target.offset, target.count);
    UpdateItem item;
    item.name = parameter.name;
    item.parameter = target.parameter.reshape(shape);
    item.gradient = gradient.reshape(shape);
    for (const Tensor& state : target.state) item.state.push_back(state.reshape(shape));
    if (target.published.defined()) item.published = target.published.reshape(shape);
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace dmuon
