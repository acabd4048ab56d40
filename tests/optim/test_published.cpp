// The second copy of the updated parameter: its bits are those of the parameter, or their rounding to bfloat16.
#include "dmuon/core/error.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "dmuon/optim/sgd.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

UpdateItem item_of(Backend& backend, const UpdateRule& rule, const Shape& shape) {
  UpdateItem item;
  item.name = "layer.weight";
  item.parameter = tensor_of(backend, normal_values(1, shape.elements()), shape, DType::float32);
  item.gradient = tensor_of(backend, normal_values(2, shape.elements()), shape, DType::float32);
  for (size_t i = 0; i < rule.state().size(); ++i)
    item.state.push_back(tensor_of(backend, std::vector<double>(static_cast<size_t>(shape.elements()), 0.01), shape, DType::float32));
  return item;
}

}  // namespace

TEST_CASE("every rule publishes the parameter it leaves, in float32 and in bfloat16", "[device]") {
  const Shape shape{33, 70};
  const auto dtype = GENERATE(DType::float32, DType::bfloat16);
  for (const auto& backend : {reference_backend(), make_test_backend()}) {
    std::vector<std::unique_ptr<UpdateRule>> rules;  // a rule belongs to the device of its first step
    rules.push_back(make_adamw({}));
    rules.push_back(make_sgd({}));
    rules.push_back(make_muon(muon_options("keller")));
    for (const auto& rule : rules) {
      INFO(rule->name() << " " << backend->name() << " " << name_of(dtype));
      std::vector<UpdateItem> plain = {item_of(*backend, *rule, shape)}, publishing = {item_of(*backend, *rule, shape)};
      publishing.front().published = tensor_of(*backend, std::vector<double>(33 * 70, NAN), shape, dtype);
      for (auto* items : {&plain, &publishing}) {
        rule->prepare(*backend, backend->compute_stream(), {1, 0.02, 0.5});
        rule->global(*backend, backend->compute_stream(), *items);
      }
      const std::vector<double> expected = to_doubles(*backend, plain.front().parameter);
      CHECK((to_doubles(*backend, publishing.front().parameter) == expected));
      const Tensor converted = backend->allocate(shape, dtype, MemoryCategory::workspace, "test");
      backend->copy(backend->compute_stream(), plain.front().parameter, converted);
      CHECK((to_doubles(*backend, publishing.front().published) == to_doubles(*backend, converted)));
    }
  }
}

TEST_CASE("a published copy of another size or dtype is refused by the parameter's name") {
  const auto backend = reference_backend();
  const auto rule = make_adamw({});
  rule->prepare(*backend, backend->compute_stream(), {});
  for (const Tensor& wrong :
       {tensor_of(*backend, {1, 2}, Shape{2}, DType::float32), tensor_of(*backend, {1, 2, 3}, Shape{3}, DType::int32)}) {
    std::vector<UpdateItem> items = {item_of(*backend, *rule, Shape{3})};
    items.front().published = wrong;
    CHECK_THROWS_AS(rule->global(*backend, backend->compute_stream(), items), ShapeError);
    CHECK_THROWS_WITH(rule->global(*backend, backend->compute_stream(), items), Catch::Contains("layer.weight"));
  }
}
