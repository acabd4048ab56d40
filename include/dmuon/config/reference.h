// Documents made from the key table.
#pragma once

#include <string>

#include "dmuon/core/json.h"

namespace dmuon {

std::string configuration_markdown();  // docs/configuration.md
Json configuration_schema();           // docs/config.schema.json (JSON Schema, draft 2020-12)
std::string configuration_help();      // plain text for a terminal: one key a line

}  // namespace dmuon
