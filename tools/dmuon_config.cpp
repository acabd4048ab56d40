// dmuon_config: the reference page and schema of the configuration, and a check of files without starting a run.
#include <cstdio>

#include "dmuon/config/configuration.h"
#include "dmuon/config/reference.h"
#include "train/command_line.h"
#include "train/huggingface.h"

int main(int argc, char** argv) {
  CLI::App app("Documents and checks the configuration of dmuon_train");
  app.require_subcommand(1);
  const auto* markdown = app.add_subcommand("markdown", "Print docs/configuration.md");
  const auto* schema = app.add_subcommand("schema", "Print docs/config.schema.json");
  const auto* keys = app.add_subcommand("keys", "Print every key with its default and meaning");
  auto* check = app.add_subcommand("check", "Check a file and print it resolved");
  std::string file;
  std::vector<std::string> overrides;
  check->add_option("file", file, "Configuration file (JSON)")->required();
  check->add_option("--set", overrides, "key=value, may be repeated")->allow_extra_args(false);
  return dmuon::run_program(app, argc, argv, [&] {
    if (*markdown) std::fputs(dmuon::configuration_markdown().c_str(), stdout);
    if (*schema) std::puts(dmuon::configuration_schema().dump(2).c_str());
    if (*keys) std::fputs(dmuon::configuration_help().c_str(), stdout);
    if (*check)
      std::puts(dmuon::to_json(dmuon::load_configuration(file, overrides, dmuon::huggingface_import(dmuon::models()))).dump(2).c_str());
  });
}
