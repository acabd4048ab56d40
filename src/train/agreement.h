// Decisions that can fail are collective: all ranks succeed, or all throw the same error.
#pragma once

#include <filesystem>

#include "dmuon/comm/communicator.h"
#include "dmuon/core/error.h"

namespace dmuon {

// An error that every rank throws at the same place: the job may end in order, and one rank prints it.
struct AgreedError : Error {
  using Error::Error;
};

// Runs `work` on this rank; afterwards all ranks go on, or all throw the error of the lowest failing rank.
template <class Work>
void agreed(Communicator& world, Work&& work) {
  std::string message;
  ExitCode code = ExitCode::done;
  try {
    work();
  } catch (const CommunicationError&) {
    throw;  // the ranks cannot agree any more
  } catch (const Error& error) {
    message = error.what();
    code = error.exit_code();
  } catch (const std::filesystem::filesystem_error& error) {
    message = error.what();
    code = ExitCode::storage;
  } catch (const std::exception& error) {
    message = error.what();
    code = ExitCode::device;  // out of memory, or a defect
  }
  try {
    world.agree(code == ExitCode::done, message, code);
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& error) {
    throw AgreedError(error.exit_code(), error.what());
  }
}

}  // namespace dmuon
