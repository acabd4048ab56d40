// The static schedule against a plain simulation of nested scopes: what is needed is there, no buffer has two users.
#include <algorithm>
#include <map>
#include <set>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "shard/pass_schedule.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

// A scope of the forward pass with the scopes inside it.
struct Scope {
  int unit;
  std::vector<Scope> inner;
};

struct Events {
  std::vector<std::pair<char, int>> list;  // '+' enter, '-' leave
  void forward(const std::vector<Scope>& scopes) {
    for (const Scope& scope : scopes) {
      list.emplace_back('+', scope.unit);
      forward(scope.inner);
      list.emplace_back('-', scope.unit);
    }
  }
  void backward(const std::vector<Scope>& scopes) {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
      list.emplace_back('+', scope->unit);
      backward(scope->inner);
      list.emplace_back('-', scope->unit);
    }
  }
  std::vector<int> enters() const {
    std::vector<int> units;
    for (const auto& [kind, unit] : list)
      if (kind == '+') units.push_back(unit);
    return units;
  }
};

// Walks the events as the publisher does and returns the largest number of elements in buffers that hold something.
int64_t simulate(const std::vector<Scope>& scopes, const std::vector<int64_t>& elements, int look_ahead) {
  Events forward, backward;
  forward.forward(scopes);
  backward.backward(scopes);
  const UseOrder order = make_use_order(forward.enters(), backward.enters(), static_cast<int>(elements.size()));
  const PassSchedule schedule = make_pass_schedule(order, elements, look_ahead);
  std::vector<std::pair<char, int>> events = forward.list;
  events.insert(events.end(), backward.list.begin(), backward.list.end());
  std::map<int, int> occupant;               // buffer -> unit
  std::map<int, std::vector<int>> position;  // open scopes of a unit
  int entered = 0, filled = 0;
  for (const auto& [kind, unit] : events) {
    if (kind == '+') {
      for (; filled < order.uses() && filled <= entered + look_ahead; ++filled) {
        const auto f = static_cast<size_t>(filled);
        if (!schedule.fills[f]) continue;
        INFO("filling for use " << filled << " at " << entered);
        REQUIRE(occupant.count(schedule.buffer[f]) == 0);
        REQUIRE(schedule.pool[static_cast<size_t>(schedule.buffer[f])] >= elements[static_cast<size_t>(order.units[f])]);
        occupant[schedule.buffer[f]] = order.units[f];
      }
      REQUIRE(order.units[static_cast<size_t>(entered)] == unit);
      if (elements[static_cast<size_t>(unit)] > 0) {
        INFO("use " << entered << " of unit " << unit);
        REQUIRE(occupant.at(schedule.buffer[static_cast<size_t>(entered)]) == unit);
      }
      position[unit].push_back(entered++);
    } else {
      const int p = position[unit].back();
      position[unit].pop_back();
      REQUIRE(order.left[static_cast<size_t>(p)] == entered);
      if (elements[static_cast<size_t>(unit)] > 0 && !schedule.keeps[static_cast<size_t>(p)])
        occupant.erase(schedule.buffer[static_cast<size_t>(p)]);
    }
  }
  CHECK(occupant.empty());
  int64_t sum = 0;
  for (int64_t size : schedule.pool) sum += size;
  return sum;
}

// A tied table around the embedding and inside the head, as in GPT-2.
std::vector<Scope> tied(int blocks) {
  std::vector<Scope> scopes{{0, {{1, {}}}}};
  for (int i = 0; i < blocks; ++i) scopes.push_back({2 + i, {}});
  scopes.push_back({2 + blocks, {{0, {}}}});
  return scopes;
}

}  // namespace

TEST_CASE("values are in a buffer of their own whenever their unit is used") {
  for (int blocks : {0, 1, 2, 7})
    for (int look_ahead : {0, 1, 2, 3, 20}) {
      INFO(blocks << " blocks, look-ahead " << look_ahead);
      std::vector<int64_t> elements(static_cast<size_t>(blocks) + 3, 100);
      elements[0] = 1000;
      simulate(tied(blocks), elements, look_ahead);
      elements[1] = 0;  // always there
      simulate(tied(blocks), elements, look_ahead);
    }
}

TEST_CASE("the pool grows with the look-ahead, not with the model") {
  std::vector<Scope> chain;
  for (int i = 0; i < 50; ++i) chain.push_back({i, {}});
  const std::vector<int64_t> elements(50, 10);
  CHECK(simulate(chain, elements, 0) == 10);
  CHECK(simulate(chain, elements, 1) == 20);
  CHECK(simulate(chain, elements, 3) == 40);
}

TEST_CASE("the last unit of the forward pass stays for its backward") {
  const UseOrder order = make_use_order({0, 1, 2}, {2, 1, 0}, 3);
  const PassSchedule schedule = make_pass_schedule(order, {5, 5, 5}, 0);
  CHECK(schedule.keeps == std::vector<bool>{false, false, true, false, false, false});
  CHECK(schedule.fills == std::vector<bool>{true, true, true, false, true, true});
}

TEST_CASE("lifetimes that overlap never share a buffer, and small ones use what large ones leave") {
  const BufferPlan plan = plan_buffers({{0, 2, 10}, {1, 3, 10}, {3, 5, 10}, {4, 6, 4}, {0, 0, 4}});
  CHECK(plan.buffer[0] != plan.buffer[1]);
  CHECK(plan.buffer[0] == plan.buffer[2]);
  CHECK(plan.elements == std::vector<int64_t>{10, 10});
}

TEST_CASE("units are published by first use; orders that do not mirror each other are refused") {
  const UseOrder order = make_use_order({2, 0, 2}, {2, 0, 2}, 4);
  CHECK(order.first_uses(4) == std::vector<int>{2, 0, 1, 3});
  CHECK_THROWS_AS(make_use_order({0, 1}, {1, 1}, 2), ConfigError);
  CHECK_THROWS_AS(make_use_order({0, 1}, {1}, 2), ConfigError);
  CHECK_THROWS_AS(make_use_order({0, 5}, {5, 0}, 2), ConfigError);
}
