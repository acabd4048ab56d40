#include "dmuon/core/tensor.h"

#include "support/catch.h"

using namespace dmuon;

TEST_CASE("views share storage and stay inside it") {
  auto allocator = make_host_allocator();
  Tensor tensor(allocator->allocate(6 * 4, MemoryCategory::workspace, "test"), 0, Shape{2, 3}, DType::float32);
  for (int i = 0; i < 6; ++i) tensor.data<float>()[i] = static_cast<float>(i);
  CHECK(tensor.slice(1, 1).data<float>()[0] == 3.0f);
  CHECK(tensor.reshape(Shape{3, 2}).slice(2, 1).data<float>()[1] == 5.0f);
  CHECK(tensor.flat(4, 2).data<float>()[0] == 4.0f);
  CHECK_THROWS_AS(tensor.slice(1, 2), ShapeError);
  CHECK_THROWS_AS(tensor.flat(5, 2), ShapeError);
  CHECK_THROWS_AS(tensor.reshape(Shape{7}), ShapeError);
  CHECK_THROWS_AS(tensor.data<double>(), ShapeError);
}
