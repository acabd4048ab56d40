// dmuon_checkpoint: looks at checkpoints and proves that they are whole. Exit codes as everywhere: 2 for a checkpoint that is
// damaged, incomplete or absent.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/checkpoint_report.h"

namespace {

void print(const std::string& content) { std::fwrite(content.data(), 1, content.size(), stdout); }

int run(int argc, char** argv) {
  CLI::App app("Looks at dmuon checkpoints and verifies them");
  app.require_subcommand(1);
  std::string path;
  CLI::App* inspect = app.add_subcommand("inspect", "What a checkpoint holds: step, tokens, files, tensors, optimizer rules");
  inspect->add_option("path", path, "A step directory, or a directory of checkpoints (its newest one)")->required();
  CLI::App* verify = app.add_subcommand("verify", "Read every byte and compare it with the manifest");
  verify->add_option("path", path, "A step directory, or a directory of checkpoints (its newest one)")->required();
  CLI::App* list = app.add_subcommand("list", "All checkpoints of a directory, incomplete ones with what is wrong");
  list->add_option("directory", path, "A directory of checkpoints")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : static_cast<int>(dmuon::ExitCode::bad_input);
  }

  using dmuon::CheckpointCheck, dmuon::CheckpointReader;
  if (list->parsed()) {
    print(dmuon::describe_checkpoints(path));
    return 0;
  }
  // The newest checkpoint is the one a user asks about even when it is damaged: no search for an older one.
  const CheckpointReader reader(dmuon::newest_checkpoint_path(path), CheckpointCheck::sizes);
  if (inspect->parsed()) print(dmuon::describe_checkpoint(reader));
  if (verify->parsed()) {
    reader.verify_hashes();
    print(dmuon::text("OK ", reader.path().string(), ": ", reader.files().size(), " files, ", reader.tensors().size(), " tensors, ",
                      dmuon::format_bytes(dmuon::total_bytes(reader)), "\n"));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const dmuon::Error& failure) {
    std::fprintf(stderr, "dmuon_checkpoint: %s\n", failure.what());
    return static_cast<int>(failure.exit_code());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "dmuon_checkpoint: %s\n", failure.what());
    return 1;
  }
}
