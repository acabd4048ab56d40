#include "train/samples.h"

#include <algorithm>
#include <chrono>

#include "dmuon/core/text.h"
#include "dmuon/train/generator.h"
#include "train/agreement.h"
#include "train/appended_file.h"

namespace dmuon {
namespace {

// Until `stops` says so, which is asked before every token but the first.
std::string texts_of(Backend& backend, Model& model, const SampleRequest& request, const std::function<bool()>& stops) {
  const SampleConfiguration& sample = request.configuration;
  GenerationOptions options;
  options.tokens = sample.tokens;
  options.temperature = sample.temperature;
  options.top_k = sample.top_k;
  options.top_p = sample.top_p;
  options.seed = static_cast<uint64_t>(sample.seed);
  options.classes = request.tokenizer.vocabulary_size();
  // Of a long prompt the end is read.
  const auto read = std::min(request.prompt.size(), static_cast<size_t>(model.facts().context_length));
  const std::vector<int32_t> prompt(request.prompt.end() - static_cast<std::ptrdiff_t>(read), request.prompt.end());
  std::string all;
  bool stopped = false;
  for (int64_t i = 0; i < sample.count && !stopped; ++i) {
    options.sequence = static_cast<uint64_t>(i);
    const GenerationResult result = generate_batch(backend, model, std::span(&prompt, 1), options, [&](size_t, int32_t) {
      stopped = stops();
      return !stopped;
    });
    all += text("--- sample ", i + 1, " after step ", request.step, "\n", sample.prompt, request.tokenizer.decode(result.tokens.front()),
                "\n");
  }
  return all;
}

// On the rank that generates while the others listen. Asking costs them a wake-up, so it is done by the clock.
std::string texts_for_listeners(Backend& backend, Model& model, const SampleRequest& request, StopRequest& stop) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds pause(200);
  Clock::time_point asked = Clock::now();
  std::string all;
  try {
    all = texts_of(backend, model, request, [&] {
      if (Clock::now() - asked < pause) return false;
      asked = Clock::now();
      return stop.ask_listeners(false);
    });
  } catch (const CommunicationError&) {
    throw;  // nobody listens any more
  } catch (...) {
    stop.ask_listeners(true);
    throw;
  }
  stop.ask_listeners(true);
  return all;
}

}  // namespace

std::optional<std::string> generate_samples(Backend& backend, Communicator& world, Model& model, const SampleRequest& request,
                                            StopRequest& stop) {
  std::string all;
  agreed(world, [&] {
    if (request.by_all)
      all = texts_of(backend, model, request, [&] { return stop.ask(); });
    else if (world.rank() == 0)
      all = texts_for_listeners(backend, model, request, stop);
    else
      stop.listen();
  });
  if (stop.requested()) return std::nullopt;
  return all;
}

void append_samples(const Path& path, const std::string& samples) { AppendedFile(path).append(samples); }

}  // namespace dmuon
