// An update rule in two halves around the agreement of the ranks (design section 2):
//
//   local(gradient, local state) -> message,  the ranks agree,  global(agreed, global state) -> update
//
// Rules are rank-blind: they see whole tensors, or element ranges where they allow cuts, never the network.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/backend/signs.h"
#include "dmuon/core/json.h"
#include "dmuon/core/measurement_cache.h"

namespace dmuon {

enum class Agreement : uint8_t { mean, vote };
enum class Cutting : uint8_t {
  anywhere,  // element-wise: the rule works on any contiguous range of elements
  whole      // the rule needs the whole tensor
};

// One state tensor per parameter, float32, of the parameter's shape (or range), zero at the start.
struct StateSpecification {
  std::string name;    // "momentum", "first_moment"; the checkpoint key is "<parameter>#<name>"
  bool local = false;  // local state exists once per replica (vote rules); global state once in the job
};

// What the workers have agreed on for the elements of one item of a vote rule (backend/signs.h): one bit an element, and the
// header that says which row segments take part. A segment whose message is zero on every worker is inactive.
struct SignVote {
  Tensor words;   // int64 [sign_words]: bit i is 1 where the majority says +
  Tensor header;  // int64 [sign_header_words]
  SignSegments segments;

  bool defined() const { return words.defined(); }
};

// One parameter, or one range of its elements, on the rank that holds it.
struct UpdateItem {
  std::string name;           // the parameter's
  Tensor parameter;           // master, float32 [out, in], [heads, rows, in] (update_shape) or [n]; updated in place
  Tensor gradient;            // agreed (reduced) gradient, same shape; may be overwritten
  std::vector<Tensor> state;  // in the order of UpdateRule::state()
  Tensor published = {};      // optional, same shape: receives the updated parameter in the pass that makes it, as float32
                              // or as bfloat16 rounded to nearest even; what the other ranks will compute with
  SignVote vote = {};         // vote rules, global half: the agreed signs of the messages, in place of an agreed gradient
};

// What changes from step to step. Reaches kernels through small device tensors.
struct StepValues {
  int64_t step = 1;             // of this rule, the first update is 1
  double learning_rate = 0.0;   // after the schedule
  double gradient_scale = 1.0;  // clip coefficient; multiplies raw gradients, never an orthogonalised update. For vote rules
                                // times the number of workers: their gradient is a worker's own share of the mean
};

// What a rule has done since it was made; the trainer compares calls with the routing every step.
struct UpdateCounters {
  int64_t newton_schulz_calls = 0;         // matrices orthogonalised; a rerun by the guard is no further call
  int64_t newton_schulz_guard_events = 0;  // matrices that failed the guard (newton_schulz.h), rerun or not finite
};

// `count` tensors of one shape that one rank updates in a step.
struct ShapeCount {
  Shape shape;
  int64_t count = 1;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual std::string name() const = 0;  // "adamw", "sgd", "muon"
  virtual Agreement agreement() const { return Agreement::mean; }
  virtual Cutting cutting() const = 0;
  // Whether the blocks of rows that belong to attention heads are matrices of their own (update_shape).
  virtual bool per_head() const { return false; }
  virtual std::vector<StateSpecification> state() const = 0;
  // Everything that gives the rule its meaning (momentum form, coefficient set, restarts, epsilon ...), stored with
  // checkpoints and compared on resume.
  virtual Json description() const = 0;
  // FLOPs of one update of a tensor of this update_shape; the planner's model of cost.
  virtual double flops(const Shape& shape) const = 0;
  // Newton-Schulz calls this rule makes for one matrix and step in each replica (0 to 2): checked against the routing every step.
  virtual int newton_schulz_calls() const { return 0; }
  virtual UpdateCounters counters() const { return {}; }

  // Before the first step, on one rank: measures what makes the updates of these shapes fast on this backend, keeps the
  // choices and returns them; known ones come from the cache (null: none), new ones go to it. The other ranks adopt() the
  // result, so that all ranks share one. A choice changes no bits, except where the rule's options ask for that; such
  // choices are part of description(). Never tuned is legal: rules then use fixed defaults. Rules with nothing to choose
  // keep these.
  virtual Json tune(Backend&, std::span<const ShapeCount>, MeasurementCache*) { return Json::object(); }
  virtual void adopt(const Json&) {}  // ConfigError for choices this rule cannot have made

  // Writes this step's values to the device; once per step before the halves.
  virtual void prepare(Backend& backend, Stream& stream, const StepValues& values) = 0;
  // Local half: replaces each item's gradient by its message, on the worker's own gradient and local state (global state
  // tensors need not be defined here). Vote rules only; a message that is not finite is left as it is, for the vote to
  // report before any master changes. Rules without a local half keep the default.
  virtual void local(Backend&, Stream&, std::span<UpdateItem>) {}
  // Global half: the update from the agreed gradient or, for vote rules, from item.vote, with global state (local state
  // tensors and the gradient need not be defined). Items of equal shape in one call may be processed as a batch; the results
  // never depend on which items share a call, nor on how an element-wise tensor is cut.
  virtual void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) = 0;
};

// The shape under which a rule gets a whole parameter [rows, ...] of `heads` heads: [heads, rows / heads, columns] where it is
// per_head() and there are several, else the parameter's own. `name` is for the ShapeError of rows that heads do not divide.
Shape update_shape(const UpdateRule& rule, std::string_view name, const Shape& shape, int64_t heads);

}  // namespace dmuon
