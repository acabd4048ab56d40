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

TEST_CASE("a view that would leave its storage is refused") {
  auto allocator = make_host_allocator();
  auto storage = allocator->allocate(24, MemoryCategory::workspace, "test");
  CHECK_NOTHROW(Tensor(storage, 8, Shape{4}, DType::float32));
  CHECK_THROWS_WITH(Tensor(storage, 8, Shape{5}, DType::float32), Catch::Contains("float32[5]") && Catch::Contains("24 bytes"));
  CHECK_THROWS_AS(Tensor(storage, 2, Shape{1}, DType::float32), ShapeError);  // not aligned to its elements
  CHECK_THROWS_AS(Tensor(storage, -4, Shape{1}, DType::float32), ShapeError);
  CHECK_THROWS_AS(Tensor(storage, 0, Shape{int64_t{1} << 62}, DType::float64), ShapeError);
  CHECK_THROWS_AS(Tensor(nullptr, 0, Shape{1}, DType::float32), ShapeError);
}

TEST_CASE("rows, flat views and views of views") {
  auto allocator = make_host_allocator();
  Tensor tensor(allocator->allocate(30 * 8, MemoryCategory::workspace, "test"), 0, Shape{2, 3, 5}, DType::float64);
  CHECK(tensor.rows() == 6);
  CHECK(tensor.bytes() == 240);
  CHECK(tensor.flat().shape() == Shape{30});
  CHECK(tensor.slice(1, 1).slice(0, 1).shape() == Shape{1, 3, 5});
  CHECK(tensor.slice(1, 1).offset() == 120);
  CHECK(tensor.slice(2, 0).elements() == 0);
  CHECK(tensor.to_string() == "float64[2, 3, 5]");
  CHECK_FALSE(Tensor().defined());
  StorageHandle storage = tensor.storage();
  CHECK(tensor.slice(0, 1).storage() == storage);
  Tensor counted(make_counting_allocator()->allocate(64, MemoryCategory::workspace, "test"), 0, Shape{16}, DType::float32);
  CHECK(counted.flat(3, 2).data<float>() == nullptr);
}
