#include <cstdio>

#include "dmuon/config/configuration.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/train/train.h"
#include "train/arguments.h"
#include "train/devices.h"
#include "train/run.h"
#include "train/threads.h"

namespace dmuon {
namespace {

// Parameters straight from the file; no rules, no state.
void load_parameters(Backend& backend, const Inventory& inventory, const CheckpointReader& reader) {
  std::vector<ExpectedTensor> expected;
  for (const ParameterDeclaration& parameter : inventory.parameters())
    expected.push_back({parameter.name, DType::float32, parameter.shape});
  reader.check_tensors(expected, true);
  std::vector<float> host;
  for (const ParameterDeclaration& parameter : inventory.parameters()) {
    host.resize(static_cast<size_t>(parameter.shape.elements()));
    reader.read_tensor(parameter.name, host.data(), parameter.shape.elements() * 4);
    parameter.state->value = backend.allocate(parameter.shape, DType::float32, MemoryCategory::parameters, parameter.name);
    backend.copy_from_host(backend.compute_stream(), host.data(), parameter.state->value);
  }
}

int run(const GenerateArguments& arguments, const std::vector<ModelFamily>& families) {
  const CheckpointReader reader(resolve_checkpoint(arguments.checkpoint));
  if (!reader.has_text("tokenizer.json"))
    throw CheckpointError(
        text(reader.path().string(), " holds no tokenizer (it was trained on token files), so text cannot be read or written"));
  const TokenizerHandle tokenizer = tokenizer_from_json(parse_json(reader.text_of("tokenizer.json"), "tokenizer.json"));
  const Json settings = parse_json(reader.text_of("model.json"), "model.json");
  const std::unique_ptr<Model> model = find_family(families, settings.at("family").as_string()).make(settings);
  BackendOptions options;
  options.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : allowed_processors();
  const std::unique_ptr<Backend> backend = make_backend(arguments.device, options);
  load_parameters(*backend, model->inventory(), reader);

  const std::string prompt = arguments.prompt_file.empty() ? arguments.prompt : read_file(arguments.prompt_file);
  const std::vector<int32_t> ids = tokenizer->encode(prompt.empty() ? "\n" : prompt, "prompt");
  GenerationOptions generation = arguments.options;
  generation.classes = tokenizer->vocabulary_size();
  for (int64_t i = 0; i < arguments.count; ++i) {
    generation.sequence = static_cast<uint64_t>(i);
    if (arguments.count > 1) std::printf("%s--- %lld ---\n", i > 0 ? "\n" : "", static_cast<long long>(i + 1));
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
    dmuon::generate(*backend, *model, ids, generation, [&](int32_t id) {
      const std::string piece = tokenizer->decode(std::span(&id, 1));
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    });
    std::printf("\n");
  }
  return 0;
}

}  // namespace

int generate(int argc, char** argv, const std::vector<ModelFamily>& families) {
  const ParseResult<GenerateArguments> parsed = parse_generate_arguments(argc, argv);
  if (!parsed.arguments) return parsed.exit_code;
  try {
    return run(*parsed.arguments, families);
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    log_error(error.what());
    return static_cast<int>(ExitCode::device);
  }
}

}  // namespace dmuon
