// What the command lines of all programs share: parsing, help, version, exit codes, and the ranges of numbers.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dmuon/core/file.h"

namespace dmuon {

// The number that all of `written` spells in decimal; nothing for anything else, NaN and infinity included.
std::optional<double> finite_number(const std::string& written);
// Also nothing where the integer needs more than 64 bits.
std::optional<int64_t> whole_number(const std::string& written);

// Checks of options. They read the text and not what it became, so that NaN, infinity, integers of more than 64 bits and -1 for an
// unsigned option are refused; the message names what was found and the range ("expected a number above 0, found nan"). CLI11's own
// ranges let NaN pass, and print the bounds of the type.
CLI::Validator number_above(double bound);
CLI::Validator number_between(double least, double most);
CLI::Validator number_from(double least);
CLI::Validator integer_between(int64_t least, int64_t most);
CLI::Validator integer_from(int64_t least);

// Gives `app` --version and the project's form of help, and parses with its options: nothing when the program may go on, or the exit
// code (0 or bad_input) after help, version or a usage error were printed.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

// The exit code of `run`: 0, or that of the error it throws, which is logged as "error: ...".
int exit_code_of(const std::function<void()>& run);

// A whole program: parses, runs, and returns its exit code.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

// Throws, before work whose results will be written to `path` is begun, the StorageError that would come after it; empty: no file is
// wanted. Leaves what is there as it is.
void require_writable(const Path& path);

}  // namespace dmuon
