// dmuon_bench: one subcommand for every table. Prints it and, with --json FILE, also writes
// {"benchmark": name, "machine": {...}, "rows": [...]}.
#include <cstdlib>
#include <iostream>

#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "support.h"
#include "train/command_line.h"

namespace {

using namespace dmuon;

std::string cell(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_integer()) return format_count(value.as_integer());
  if (value.is_number()) return format_number(value.as_number(), 3);
  if (value.is_null()) return "-";
  return value.dump();
}

void print(const Json::Array& rows) {
  if (rows.empty()) return;
  std::vector<std::vector<std::string>> table(1);
  for (const auto& [key, value] : rows.front().as_object()) table.front().push_back(key);
  for (const Json& row : rows) {
    table.emplace_back();
    for (const auto& [key, value] : row.as_object()) table.back().push_back(cell(value));
  }
  std::cout << format_table(table) << std::flush;
}

void write(const std::string& path, const std::string& benchmark, const bench::Arguments& arguments, Json::Array rows) {
  Json report = Json::object();
  report.set("benchmark", benchmark);
  report.set("machine", bench::machine_of(arguments));
  report.set("rows", std::move(rows));
  write_file_atomically(path, report.dump(2) + "\n");
}

// As the launchers tell; only the first rank writes the report.
bool is_first_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(variable); rank != nullptr) return std::string_view(rank) == "0";
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<bench::Benchmark> benchmarks = {
      bench::train_step_benchmark(),
      bench::memory_benchmark(),
      bench::load_benchmark(),
      bench::gemm_benchmark(),
      bench::bandwidth_benchmark(),
      bench::kernels_benchmark(),
      bench::newton_schulz_benchmark(),
      bench::newton_schulz_error_benchmark(),
      bench::optimizer_step_benchmark(),
      bench::overlap_benchmark(),
      bench::step_ratio_benchmark(),
      bench::collectives_benchmark(),
      bench::symmetric_product_benchmark(),
      bench::sign_kernels_benchmark(),
      bench::sign_transport_benchmark(),
      bench::weak_scaling_benchmark(),
      bench::device_update_benchmark(),
      bench::decode_benchmark(),
      bench::device_bars_benchmark(),
      bench::tokenize_benchmark(),
  };
  CLI::App app("Measures dmuon's kernels as ratios to what the machine can do.");
  app.require_subcommand(1);
  bench::Arguments arguments;
  std::string json;
  for (const bench::Benchmark& benchmark : benchmarks) {
    CLI::App* command = app.add_subcommand(benchmark.name, benchmark.summary);
    command->add_option("--threads", arguments.threads, "Threads of the backend")->check(integer_between(1, 1 << 20));
    command->add_option("--pairs", arguments.pairs, "Measured turns of each side")->check(integer_between(1, 1 << 20));
    command->add_option("--json", json, "Also write the report to this file");
    for (const auto& [name, help] : benchmark.options)
      command
          ->add_option_function<std::string>(
              "--" + name,
              [&arguments, key = name](const std::string& value) {
                std::string& all = arguments.own[key];
                all = key == "set" && !all.empty() ? all + "\n" + value : value;
              },
              help)
          ->trigger_on_parse();
  }
  return run_program(app, argc, argv, [&] {
    if (is_first_rank()) require_writable(json);
    for (const bench::Benchmark& benchmark : benchmarks) {
      if (!app.got_subcommand(benchmark.name)) continue;
      arguments.own.emplace("device", benchmark.default_device);
      Json::Array rows = benchmark.run(arguments);
      print(rows);
      if (!json.empty() && !rows.empty()) write(json, benchmark.name, arguments, std::move(rows));
    }
  });
}
