// Small things the update rules share.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/update_rule.h"

namespace dmuon {

// Hyper-parameters on the device: float64, written in stream order, kept for the rule's life, so that a captured graph
// stays valid.
class HyperTensor {
 public:
  void write(Backend& backend, Stream& stream, std::span<const double> values) {
    if (!tensor_.defined())
      tensor_ =
          backend.allocate(Shape{static_cast<int64_t>(values.size())}, DType::float64, MemoryCategory::optimizer_state, "hyper-parameters");
    backend.copy_from_host(stream, values.data(), tensor_);
  }
  // ShapeError when prepare() was forgotten.
  const Tensor& tensor() const {
    if (!tensor_.defined()) throw ShapeError("update rule: prepare() must run before the update halves");
    return tensor_;
  }

 private:
  Tensor tensor_;
};

// ConfigError "<rule>: <field> must lie in ..., found ...". An open upper end excludes `high`.
inline void check_range(const char* rule, const char* field, double value, double low, double high, bool open_end = false) {
  if (value >= low && (open_end ? value < high : value <= high)) return;
  throw ConfigError(text(rule, ": ", field, " must lie in [", low, ", ", high, open_end ? ")" : "]", ", found ", value));
}

// ShapeError naming the parameter unless the item's tensor is one of `parameter`'s size and dtype.
inline void check_companion(std::string_view rule, const UpdateItem& item, std::string_view what, const Tensor& tensor) {
  if (tensor.defined() && tensor.elements() == item.parameter.elements() && tensor.dtype() == item.parameter.dtype()) return;
  throw ShapeError(text(rule, ": ", item.name, " is ", item.parameter.to_string(), " but its ", what, " is ",
                        tensor.defined() ? tensor.to_string() : std::string("undefined")));
}

// ShapeError naming the parameter unless the item brings the rule's states, each like the parameter.
inline void check_states(const UpdateRule& rule, const UpdateItem& item) {
  const std::vector<StateSpecification> states = rule.state();
  if (item.state.size() != states.size())
    throw ShapeError(text(rule.name(), ": ", item.name, " brings ", item.state.size(), " state tensors, the rule has ", states.size()));
  for (size_t i = 0; i < states.size(); ++i) check_companion(rule.name(), item, states[i].name, item.state[i]);
}

// ShapeError naming the parameter unless the published copy, if any, has as many elements.
inline void check_published(std::string_view rule, const UpdateItem& item) {
  const Tensor& published = item.published;
  if (!published.defined()) return;
  const bool right_dtype = published.dtype() == item.parameter.dtype() || published.dtype() == DType::bfloat16;
  if (published.elements() != item.parameter.elements() || !right_dtype)
    throw ShapeError(text(rule, ": ", item.name, " is ", item.parameter.to_string(), " but is to be published as ", published.to_string(),
                          "; expected as many elements in float32 or bfloat16"));
}

// ShapeError naming the parameter unless master, gradient and every state have equal element counts and dtypes, and the
// published copy, if any, as many elements.
inline void check_item(const UpdateRule& rule, const UpdateItem& item) {
  check_states(rule, item);
  check_companion(rule.name(), item, "gradient", item.gradient);
  check_published(rule.name(), item);
}

// The value of an enumeration with name_of() among `all`; ConfigError with the nearest name.
template <class Enum>
Enum enum_from_name(const char* what, std::string_view name, std::initializer_list<Enum> all) {
  std::vector<std::string> names;
  for (Enum value : all) {
    if (name_of(value) == name) return value;
    names.emplace_back(name_of(value));
  }
  const std::string close = nearest(name, names);
  throw ConfigError(text("no ", what, " \"", name, "\"", close.empty() ? std::string() : text("; did you mean \"", close, "\"?"),
                         " There are ", join(names, ", ")));
}

}  // namespace dmuon
