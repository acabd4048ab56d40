#include "dmuon/nn/model.h"

#include <algorithm>
#include <numeric>

namespace dmuon {

std::vector<int> Model::forward_order() const {
  std::vector<int> order(inventory().units().size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int> Model::backward_order() const {
  std::vector<int> order = forward_order();
  std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace dmuon
