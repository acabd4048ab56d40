#include "dmuon/optim/update_rule.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

Shape update_shape(const UpdateRule& rule, std::string_view name, const Shape& shape, int64_t heads) {
  if (!rule.per_head() || heads == 1) return shape;
  if (heads < 1 || shape.rank() < 2 || shape[0] % heads != 0)
    throw ShapeError(text(rule.name(), ": per_head is set, and the ", heads, " heads of ", name, " ", shape.to_string(),
                          " do not divide its rows; set per_head to false for it"));
  return Shape{heads, shape[0] / heads, shape.elements() / shape[0]};
}

}  // namespace dmuon
