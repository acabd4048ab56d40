// dmuon_checkpoint: looks at checkpoints, proves that they are whole, and converts them from and to Hugging Face directories. Exit codes as
// everywhere: 2 for a checkpoint that is damaged, incomplete or absent.
#include <cstdio>

#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/checkpoint_report.h"
#include "train/command_line.h"
#include "train/huggingface_export.h"

namespace {

void print(const std::string& content) { std::fwrite(content.data(), 1, content.size(), stdout); }

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Looks at dmuon checkpoints and verifies them");
  app.require_subcommand(1);
  std::string path;
  CLI::App* inspect = app.add_subcommand("inspect", "What a checkpoint holds: step, tokens, files, tensors, optimizer rules");
  inspect->add_option("path", path, "A step directory, or a directory of checkpoints (its newest one)")->required();
  CLI::App* verify = app.add_subcommand("verify", "Read every byte and compare it with the manifest");
  verify->add_option("path", path, "A step directory, or a directory of checkpoints (its newest one)")->required();
  CLI::App* list = app.add_subcommand("list", "All checkpoints of a directory, incomplete ones with what is wrong");
  list->add_option("directory", path, "A directory of checkpoints")->required();
  dmuon::CheckpointExport exported;
  std::string format, output, dtype = "float32";
  CLI::App* to = app.add_subcommand("export", "Write a checkpoint as a directory of the Hugging Face tools");
  to->add_option("path", path, "A step directory, or a directory of checkpoints or a run (its newest complete one)")->required();
  to->add_option("--format", format, "huggingface")->required()->check(CLI::IsMember({"huggingface"}));
  to->add_option("--output", output, "The directory to make; it must not exist")->required();
  to->add_option("--dtype", dtype, "float32 or bfloat16")->check(CLI::IsMember({"float32", "bfloat16"}))->capture_default_str();
  to->add_option("--shard-bytes", exported.shard_bytes, "Largest file of weights")->check(dmuon::integer_from(1))->capture_default_str();
  CLI::App* from = app.add_subcommand("import", "Make a checkpoint, without optimizer state, of a Hugging Face directory");
  from->add_option("path", path, "The directory: GPT-2, Qwen2, Qwen2.5 or Qwen3")->required();
  from->add_option("--output", output, "A directory of checkpoints; step-00000000 is made in it")->required();
  return dmuon::run_program(app, argc, argv, [&] {
    using dmuon::CheckpointCheck, dmuon::CheckpointReader;
    if (list->parsed()) {
      print(dmuon::describe_checkpoints(path));
      return;
    }
    if (to->parsed()) {
      exported.checkpoint = path, exported.output = output, exported.dtype = dmuon::dtype_from_name(dtype);
      dmuon::export_checkpoint(exported, dmuon::models());
      print(dmuon::text("exported to ", output, "\n"));
      return;
    }
    if (from->parsed()) {
      print(dmuon::text("imported into ", dmuon::import_checkpoint(path, output, dmuon::models()).string(), "\n"));
      return;
    }
    // The newest checkpoint is the one a user asks about even when it is damaged: no search for an older one.
    const CheckpointReader reader(dmuon::newest_checkpoint_path(path), CheckpointCheck::sizes);
    if (inspect->parsed()) print(dmuon::describe_checkpoint(reader));
    if (verify->parsed()) {
      reader.verify_hashes();
      print(dmuon::text("OK ", reader.path().string(), ": ", reader.files().size(), reader.files().size() == 1 ? " file, " : " files, ",
                        reader.tensors().size(), reader.tensors().size() == 1 ? " tensor, " : " tensors, ",
                        dmuon::format_bytes(dmuon::total_bytes(reader)), "\n"));
    }
  });
}
