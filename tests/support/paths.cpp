#include "support/paths.h"

namespace dmuon::testing {

std::string source_directory() { return DMUON_SOURCE_DIRECTORY; }
std::string build_directory() { return DMUON_BINARY_DIRECTORY; }

}  // namespace dmuon::testing
