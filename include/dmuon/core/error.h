// Typed errors. Every error that can reach a user names the thing (file, key, tensor, rank, host), what was expected
// and found, and the remedy; its type decides the exit code of the process.
#pragma once

#include <stdexcept>
#include <string>

namespace dmuon {

// Exit codes of every executable. 130/143 stay reserved for a second signal.
enum class ExitCode : int {
  done = 0,
  bad_input = 2,      // configuration, data, checkpoint or usage
  numerical = 3,      // NaN or Inf under the policy `stop`
  communication = 4,  // a peer failed, stopped answering, or ranks disagree
  storage = 5,        // a file could not be written or read although it should exist
  device = 6,         // a device is missing, unusable or out of memory
  stopped = 75,       // stopped on request after a complete checkpoint (EX_TEMPFAIL)
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

// A configuration file, key, override or command line that cannot be accepted.
struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error(ExitCode::bad_input, message) {}
};
// A data file (token shard, text, tokenizer) that is missing, foreign, truncated or inconsistent.
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::bad_input, message) {}
};
// A checkpoint or safetensors file that is corrupt, incomplete, foreign or does not fit the model.
struct CheckpointError : Error {
  explicit CheckpointError(const std::string& message) : Error(ExitCode::bad_input, message) {}
};
// Shapes, dtypes or arguments that do not fit together; names the operation and every shape.
struct ShapeError : Error {
  explicit ShapeError(const std::string& message) : Error(ExitCode::bad_input, message) {}
};
// A loss, gradient or parameter that is not finite.
struct NumericalError : Error {
  explicit NumericalError(const std::string& message) : Error(ExitCode::numerical, message) {}
};
// A collective that failed or expired, a rank that left, or ranks that disagree.
struct CommunicationError : Error {
  explicit CommunicationError(const std::string& message) : Error(ExitCode::communication, message) {}
};
// The operating system refused to read or write (disk full, permission, I/O error).
struct StorageError : Error {
  explicit StorageError(const std::string& message) : Error(ExitCode::storage, message) {}
};
// A device or backend that is absent, unusable or out of memory.
struct DeviceError : Error {
  explicit DeviceError(const std::string& message) : Error(ExitCode::device, message) {}
};

}  // namespace dmuon
