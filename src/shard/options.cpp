#include "dmuon/shard/options.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::string_view name_of(Distribution distribution) {
  static constexpr std::string_view names[] = {"owner", "gather", "replicated"};
  return names[static_cast<size_t>(distribution)];
}

Distribution distribution_from_name(std::string_view name) {
  for (Distribution distribution : {Distribution::owner, Distribution::gather, Distribution::replicated})
    if (name == name_of(distribution)) return distribution;
  throw ConfigError(text("distribution.method: \"", name, "\" is not one of owner, gather, replicated"));
}

}  // namespace dmuon
