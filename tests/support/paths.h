// Where tests find things. Functions, compiled once: paths in the command line of every test would defeat a compiler cache
// shared between clones.
#pragma once

#include <string>

namespace dmuon::testing {

std::string source_directory();
std::string build_directory();
inline std::string test_data() { return source_directory() + "/tests/data"; }
inline std::string reference_plugin() { return build_directory() + "/libdmuon_reference.so"; }

}  // namespace dmuon::testing
