// Whole numbers among the options of benchmarks.
#pragma once

#include <cstdint>
#include <string>

#include "support.h"

namespace dmuon::bench {

// The integer that was given as --name, else `otherwise`. ConfigError naming the option and the range unless it is one in [least, most].
int64_t integer_option(const Arguments& arguments, const std::string& name, int64_t otherwise, int64_t least, int64_t most);

}  // namespace dmuon::bench
