// The generated documents are those in docs/, and the ready configurations are sound.
#include <algorithm>
#include <filesystem>
#include <set>

#include "dmuon/config/configuration.h"
#include "dmuon/config/key_table.h"
#include "dmuon/config/reference.h"
#include "dmuon/core/file.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;

namespace {
const Path source = dmuon::testing::source_directory();
}

TEST_CASE("docs/configuration.md and docs/config.schema.json are what the key table gives") {
  INFO("make them again: dmuon_config markdown > docs/configuration.md; dmuon_config schema > docs/config.schema.json");
  CHECK(read_file(source / "docs/configuration.md") == configuration_markdown());
  CHECK(read_file(source / "docs/config.schema.json") == configuration_schema().dump(2) + "\n");
}

TEST_CASE("every key has a unique path, a one-sentence description and a default inside its range") {
  for (const auto* keys : {&configuration_keys(), &rule_keys()}) {
    std::set<std::string> paths;
    for (const Key& key : *keys) {
      INFO(key.path);
      CHECK(paths.insert(key.path).second);
      CHECK(key.description.size() > 10);
      CHECK(key.description.back() == '.');
      if (key.default_value.is_number()) {
        CHECK(key.default_value.as_number() >= key.minimum);
        CHECK(key.default_value.as_number() <= key.maximum);
      }
      if (key.type == KeyType::enumeration && key.path != "preset")
        CHECK(std::count(key.allowed.begin(), key.allowed.end(), key.default_value.as_string()) == 1);
    }
  }
}

TEST_CASE("help and schema mention every key") {
  const std::string help = configuration_help();
  for (const Key& key : configuration_keys()) CHECK(help.find(key.path) != std::string::npos);
  for (const Key& key : rule_keys()) CHECK(help.find(key.path) != std::string::npos);
  const Json schema = configuration_schema();
  CHECK(schema.at("properties").at("model").at("properties").at("layers").at("minimum").as_integer() == 1);
  CHECK(schema.at("properties").at("model").at("additionalProperties").as_bool() == false);
  CHECK(schema.at("$defs").at("rule").at("properties").at("schedule").at("properties").find("warmup_steps"));
}

TEST_CASE("every ready configuration loads") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source / "configs")) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path());
    CHECK_NOTHROW(load_configuration(entry.path()));
    CHECK(load_configuration(entry.path()).name == entry.path().stem().string());
    ++count;
  }
  CHECK(count >= 5);
}
