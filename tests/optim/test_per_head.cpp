// Per-head orthogonalisation: every head of [heads, rows, columns] is the matrix that it would be by itself.
#include <cmath>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/nn/parameter.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "dmuon/optim/routing.h"
#include "dmuon/optim/sign_muon.h"
#include "optim/vote_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

// Queries of 4 heads, keys of 2 (grouped), both 6 wide, of models 10 wide; a matrix without heads; one whose heads are tall; a head alone.
const std::vector<Shape> shapes = {{4, 6, 10}, {2, 6, 10}, {24, 10}, {3, 11, 5}, {1, 6, 10}};

MuonOptions per_head_options() {
  MuonOptions options = muon_options("keller");
  options.per_head = true;
  options.weight_decay = 0.1;
  return options;
}

// X <- a X + b (X X^T) X + c (X X^T)^2 X in doubles, five times, on X / (||X|| + epsilon).
Values naive_newton_schulz(Values x, int64_t rows, int64_t columns) {
  const auto r = static_cast<size_t>(rows), n = static_cast<size_t>(columns);
  const double norm = norm_of(x) + 1e-7;
  for (double& value : x) value /= norm;
  for (int iteration = 0; iteration < 5; ++iteration) {
    Values gram(r * r, 0.0), square(r * r, 0.0), next(r * n);
    for (size_t i = 0; i < r; ++i)
      for (size_t j = 0; j < r; ++j)
        for (size_t k = 0; k < n; ++k) gram[i * r + j] += x[i * n + k] * x[j * n + k];
    for (size_t i = 0; i < r; ++i)
      for (size_t j = 0; j < r; ++j)
        for (size_t k = 0; k < r; ++k) square[i * r + j] += gram[i * r + k] * gram[k * r + j];
    for (size_t i = 0; i < r; ++i)
      for (size_t k = 0; k < n; ++k) {
        double sum = 3.4445 * x[i * n + k];
        for (size_t j = 0; j < r; ++j) sum += (-4.7750 * gram[i * r + j] + 2.0315 * square[i * r + j]) * x[j * n + k];
        next[i * n + k] = sum;
      }
    x = next;
  }
  return x;
}

// Items of the shapes; with `apart` every head is an item of its own.
struct Items {
  std::vector<UpdateItem> items;
  std::vector<size_t> of;  // the shape that each is of

  Items(Backend& backend, bool apart, DType dtype) {
    for (size_t s = 0; s < shapes.size(); ++s) {
      const Shape& shape = shapes[s];
      const bool heads = apart && shape.rank() == 3;
      const Values parameter = normal_values(s, shape.elements()), gradient = normal_values(50 + s, shape.elements());
      const int64_t parts = heads ? shape[0] : 1, count = shape.elements() / parts;
      for (int64_t k = 0; k < parts; ++k) {
        const auto part = [&](const Values& values) {
          return tensor_of(backend, Values(values.begin() + k * count, values.begin() + (k + 1) * count),
                           heads ? Shape{shape[1], shape[2]} : shape, dtype);
        };
        items.push_back({text("w", s), part(parameter), part(gradient), {part(Values(parameter.size(), 0.0))}});
        of.push_back(s);
      }
    }
  }
  void step(Backend& backend, UpdateRule& rule, int64_t number) {
    rule.prepare(backend, backend.compute_stream(), {number, 0.1, 0.5});
    rule.global(backend, backend.compute_stream(), items);
  }
  std::vector<Values> parameters(Backend& backend) const {
    std::vector<Values> all(shapes.size());
    for (size_t i = 0; i < items.size(); ++i) {
      const Values values = to_doubles(backend, items[i].parameter);
      all[of[i]].insert(all[of[i]].end(), values.begin(), values.end());
    }
    return all;
  }
};

}  // namespace

TEST_CASE("Muon per head equals a naive twin that orthogonalises every head by itself", "[device]") {
  const auto check = [](Backend& backend, DType dtype, double tolerance) {
    const auto rule = make_muon(per_head_options());
    Items items(backend, false, dtype);
    std::vector<Values> expected(shapes.size()), momentum(shapes.size());
    for (int64_t number : {1, 2, 3}) {
      items.step(backend, *rule, number);
      for (size_t s = 0; s < shapes.size(); ++s) {
        const Shape& shape = shapes[s];
        const int64_t heads = shape.rank() == 3 ? shape[0] : 1, rows = shape[shape.rank() - 2], columns = shape[shape.rank() - 1];
        if (number == 1) expected[s] = normal_values(s, shape.elements()), momentum[s] = Values(expected[s].size(), 0.0);
        const Values gradient = normal_values(50 + s, shape.elements());
        for (int64_t h = 0; h < heads; ++h) {
          const auto first = static_cast<size_t>(h * rows * columns);
          Values update(static_cast<size_t>(rows * columns));
          for (size_t i = 0; i < update.size(); ++i) {
            double& m = momentum[s][first + i];
            m = 0.95 * m + 0.05 * 0.5 * gradient[first + i];
            update[i] = 0.05 * 0.5 * gradient[first + i] + 0.95 * m;
          }
          update = naive_newton_schulz(update, rows, columns);
          const double scale = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
          for (size_t i = 0; i < update.size(); ++i)
            expected[s][first + i] = expected[s][first + i] * (1.0 - 0.1 * 0.1) - 0.1 * scale * update[i];
        }
      }
    }
    const std::vector<Values> found = items.parameters(backend);
    for (size_t s = 0; s < shapes.size(); ++s) {
      INFO(shapes[s].to_string());
      for (size_t i = 0; i < found[s].size(); ++i) REQUIRE(found[s][i] == Approx(expected[s][i]).margin(tolerance));
    }
    CHECK(rule->counters().newton_schulz_calls == 3 * (4 + 2 + 1 + 3 + 1));
  };
  check(*reference_backend(), DType::float64, 1e-10);
  check(*make_test_backend(), DType::float32, test_device_is_cuda() ? 2e-3 : 2e-4);
}

TEST_CASE("Muon per head has the bits of one item a head, however batches are made", "[device]") {
  const auto backend = make_test_backend();
  // In float16 a device replays the update of a batch as a graph: the second and third step are replays.
  std::vector<DType> dtypes = {DType::float32};
  if (test_device_is_cuda()) dtypes.push_back(DType::float16);
  for (const auto& [workspace, dtype] :
       {std::pair{int64_t{64} << 20, dtypes.front()}, std::pair{int64_t{1}, dtypes.front()}, std::pair{int64_t{64} << 20, dtypes.back()}}) {
    INFO("workspace " << workspace << " dtype " << name_of(dtype));
    MuonOptions options = per_head_options();
    options.workspace_bytes = workspace;
    options.newton_schulz.dtype = dtype;
    const auto together = make_muon(options);
    options.per_head = false;
    const auto apart = make_muon(options);
    Items whole(*backend, false, DType::float32), heads(*backend, true, DType::float32);
    for (int64_t number : {1, 2, 3}) whole.step(*backend, *together, number), heads.step(*backend, *apart, number);
    CHECK(whole.parameters(*backend) == heads.parameters(*backend));
  }
}

TEST_CASE("Sign-Muon per head: messages and orthogonal votes are those of heads apart", "[device]") {
  const auto backend = make_test_backend();
  const std::vector<Shape> of_heads = {{3, 6, 10}, {12, 10}}, apart = {{6, 10}, {6, 10}, {6, 10}, {12, 10}};
  for (const bool post_polar : {false, true})
    for (const DecayMode decay : {DecayMode::decoupled, DecayMode::coupled}) {
      INFO(post_polar);
      SignMuonOptions options;
      options.post_polar = post_polar;
      options.rate_shape = RateShape::none;
      options.weight_decay = 0.1;
      options.decay = decay;
      const auto maker = [&](bool per_head) {
        return [options, per_head]() mutable {
          options.per_head = per_head;
          return make_sign_muon(options);
        };
      };
      Workers whole(*backend, maker(true), 3, of_heads), single(*backend, maker(false), 3, apart);
      for (size_t worker = 0; worker < 3; ++worker)  // the same start
        for (size_t h = 0; h < 3; ++h)
          single.item(worker, h).parameter = whole.item(worker, 0).parameter.flat(static_cast<int64_t>(h) * 60, 60).reshape(Shape{6, 10});
      for (size_t worker = 0; worker < 3; ++worker)
        for (size_t h = 0; h < 3; ++h) {
          const Tensor copy = backend->allocate(Shape{6, 10}, DType::float32, MemoryCategory::workspace, "copy");
          backend->copy(backend->compute_stream(), single.item(worker, h).parameter, copy);
          single.item(worker, h).parameter = copy;
        }
      for (size_t worker = 0; worker < 3; ++worker) {
        const Values other = normal_values(1, 120);
        from_doubles(*backend, other, whole.item(worker, 1).parameter);
        from_doubles(*backend, other, single.item(worker, 3).parameter);
      }
      for (int64_t number : {1, 2}) {
        std::vector<std::vector<Values>> gradients, pieces;
        for (uint64_t worker = 0; worker < 3; ++worker) {
          const Values heads = normal_values(900 + 10 * static_cast<uint64_t>(number) + worker, 180),
                       rest = normal_values(700 + worker, 120);
          gradients.push_back({heads, rest});
          pieces.push_back({Values(heads.begin(), heads.begin() + 60), Values(heads.begin() + 60, heads.begin() + 120),
                            Values(heads.begin() + 120, heads.end()), rest});
        }
        whole.step(number, 0.05, gradients);
        single.step(number, 0.05, pieces);
        Values joined, messages;
        for (size_t h = 0; h < 3; ++h) {
          const Values part = single.parameter(h), message = single.message(h, 2);
          joined.insert(joined.end(), part.begin(), part.end());
          messages.insert(messages.end(), message.begin(), message.end());
        }
        CHECK(whole.message(0, 2) == messages);
        CHECK(whole.parameter(0) == joined);
        CHECK(whole.parameter(1) == single.parameter(3));
      }
      CHECK(whole.rule(0).counters().newton_schulz_calls == 2 * 4 * (post_polar ? 2 : 1));
    }
}

TEST_CASE("heads are counted in cost and shape, and refused where they do not fit", "[device]") {
  const auto per_head = make_muon(per_head_options());
  MuonOptions options = per_head_options();
  options.per_head = false;
  const auto whole = make_muon(options);

  CHECK(update_shape(*per_head, "q", Shape{24, 10}, 4) == Shape{4, 6, 10});
  CHECK(update_shape(*per_head, "q", Shape{24, 10}, 1) == Shape{24, 10});
  CHECK(update_shape(*whole, "q", Shape{24, 10}, 4) == Shape{24, 10});
  CHECK(per_head->flops(Shape{4, 6, 10}) == Approx(4 * whole->flops(Shape{6, 10})));
  CHECK(per_head->flops(Shape{24, 10}) == whole->flops(Shape{24, 10}));
  CHECK_THROWS_AS(whole->flops(Shape{4, 6, 10}), ShapeError);
  CHECK_THROWS_WITH(update_shape(*per_head, "blocks.3.attention.key.weight", Shape{24, 10}, 5),
                    Catch::Contains("blocks.3.attention.key.weight") && Catch::Contains("per_head") && Catch::Contains("5 heads"));
  CHECK_THROWS_AS(update_shape(*per_head, "q", Shape{24, 10}, 5), ShapeError);

  Inventory inventory;
  const int unit = inventory.add_unit("block");
  CHECK_THROWS_AS(inventory.declare(unit, "q", Shape{24, 10}, ParameterRole::matrix, initialize_zero(), 5), ConfigError);
  CHECK_THROWS_AS(inventory.declare(unit, "q", Shape{24, 10}, ParameterRole::matrix, initialize_zero(), 0), ConfigError);
  inventory.declare(unit, "q", Shape{24, 10}, ParameterRole::matrix, initialize_zero(), 4);
  CHECK(inventory.find("q")->heads == 4);

  CHECK(per_head->description().at("per_head").as_bool());
  CHECK(whole->description().find("per_head") == nullptr);

  const auto backend = make_test_backend();
  const std::vector<ShapeCount> counts = {{Shape{4, 6, 10}, 2}, {Shape{6, 10}, 3}};
  const Json choices = per_head->tune(*backend, counts, nullptr);
  CHECK(choices.at("placements").as_object().size() == 1);
  CHECK(choices.at("placements").find("6x10") != nullptr);
}

TEST_CASE("routing counts heads as matrices and refuses per_head where nothing has heads") {
  RoutingRequest request;
  request.rules = {{"muon", true, 1, true}, {"adamw"}, {"muon", true, 1, true}};
  request.auxiliary_rule = 1;
  const std::vector<RoutedParameter> parameters = {
      {"q", Shape{24, 10}, "matrix", 4}, {"k", Shape{12, 10}, "matrix", 2}, {"up", Shape{24, 10}, "matrix"}};
  const Routing routing = route(request, parameters);
  CHECK(routing.newton_schulz_calls == 4 + 2 + 1);
  CHECK(routing.share[0].tensors == 3);
  CHECK(routing.share[0].matrices == 7);
  const std::string table = routing.table(request, parameters);
  CHECK_THAT(table, Catch::Contains("4 heads of [24, 10]") && Catch::Contains("Newton-Schulz calls per step: 7"));

  request.overrides = {{"up", 2}};
  CHECK_THROWS_WITH(route(request, parameters), Catch::Contains("optimizer.overrides[0] (\"up\")") && Catch::Contains("per_head"));
  request.overrides.clear();
  const std::vector<RoutedParameter> without = {{"up", Shape{24, 10}, "matrix"}};
  CHECK_THROWS_WITH(route(request, without), Catch::Contains("optimizer.matrix: per_head is true"));
  CHECK_THROWS_AS(route(request, without), ConfigError);
}
