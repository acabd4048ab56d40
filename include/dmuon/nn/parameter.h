// Parameters are declared first (name, shape, role, unit) and materialised later into unit buffers by layer `shard`, so
// that a dry run of a large model allocates nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dmuon/autograd/variable.h"
#include "dmuon/core/random.h"

namespace dmuon {

enum class ParameterRole : uint8_t {
  matrix,     // hidden weight [out, in]; a 4-D weight counts as [out, in*k*k]
  embedding,  // looked up by index; also a tied embedding/head pair
  head,       // untied output projection
  vector,     // biases, norms
  buffer      // no rule, outside slots, agreed by a named policy (running statistics)
};
std::string_view name_of(ParameterRole role);

struct Initializer {
  enum class Kind : uint8_t { zero, one, normal } kind = Kind::zero;
  double deviation = 0.0;
};
inline Initializer initialize_normal(double deviation) { return {Initializer::Kind::normal, deviation}; }
inline Initializer initialize_zero() { return {}; }
inline Initializer initialize_one() { return {Initializer::Kind::one, 0.0}; }

struct ParameterDeclaration {
  std::string name;  // "blocks.0.attention.query.weight"; our own names, unique
  Shape shape;
  ParameterRole role = ParameterRole::matrix;
  Initializer initializer;
  int unit = 0;       // index of its unit
  int64_t heads = 1;  // equal blocks of rows, one per attention head: what an update rule may take apart
  std::shared_ptr<ParameterState> state;
};

// A unit is what is published, computed with and reduced together: a transformer block, an embedding, a tied pair.
struct UnitDeclaration {
  std::string name;
  std::vector<int> parameters;  // indices into Inventory::parameters
  bool tied = false;            // used more than once in a pass: a unit of its own
};

class Inventory {
 public:
  int add_unit(std::string name, bool tied = false);
  // Throws ConfigError on a duplicate name, and where `heads` do not divide the rows.
  Variable declare(int unit, std::string name, Shape shape, ParameterRole role, Initializer initializer, int64_t heads = 1);

  const std::vector<ParameterDeclaration>& parameters() const { return parameters_; }
  const std::vector<UnitDeclaration>& units() const { return units_; }
  const ParameterDeclaration* find(std::string_view name) const;
  int64_t elements() const;  // of all parameters

 private:
  std::vector<ParameterDeclaration> parameters_;
  std::vector<UnitDeclaration> units_;
};

// Value `index` of a freshly initialised parameter: a pure function of seed, name and index, hence of nothing that
// depends on ranks or threads: deviation * Random(seed, initialization, hash_name(name)).normal(index). fill_initial writes
// elements [first, first + count) as float32 to host memory; ShapeError when they leave the parameter.
void fill_initial(const ParameterDeclaration& parameter, uint64_t seed, int64_t first, int64_t count, float* out, int threads = 1);

}  // namespace dmuon
