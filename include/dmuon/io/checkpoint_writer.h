// Saving: write everything under a temporary name, make it durable, then publish it by one rename. The layout is in
// checkpoint.h. The writer knows no other rank: a save is a sequence of steps, and between two steps the caller lets all
// ranks agree whether the step succeeded everywhere; if not, rank 0 calls abandon() and the previous checkpoint stands.
//
//   every rank   check_free_space(directory, bytes)                              -> agree
//   rank 0       writer.begin()                                                  -> agree
//   every rank   fragment = writer.write_tensors(model_file_name(...), ...)
//                fragment = writer.write_tensors(optimizer_file_name(...), ...)
//   rank 0       fragment = writer.write_text("train_state.json", ...)  ...      -> agree, gather the fragments
//   rank 0       writer.publish(fragments, information)                          -> agree
//   rank 0       apply_retention(directory, policy)                              (checkpoint_retention.h)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/dtype.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/shape.h"
#include "dmuon/io/crash_points.h"

namespace dmuon {

// One whole logical tensor to be written. `read` copies its bytes [offset, offset + bytes) to host memory, so that a tensor
// on a device, or one whose pieces lie on several ranks, passes through in bounded memory. It is called with ascending
// offsets, at most `checkpoint_chunk_bytes` at a time, each chunk a whole number of elements; tensors come in the order of
// the file (descending element size, then key).
inline constexpr int64_t checkpoint_chunk_bytes = int64_t{4} << 20;
struct CheckpointTensor {
  std::string key;
  DType dtype = DType::float32;
  Shape shape;
  std::function<void(int64_t offset, void* destination, int64_t bytes)> read;
};

struct CheckpointTarget {
  Path directory;  // holds all checkpoints of the run
  int64_t step = 0;
  std::string run_id;  // unique per start of the program, so that a leftover never collides: letters, digits, '-', '_'
  int rank = 0;        // recorded as the writer of this rank's tensors
};

struct ManifestInformation {
  int ranks = 1;
  int64_t tokens = 0;                    // trained on so far
  std::string configuration_hash = {};   // of the resolved configuration
  std::string dataset_fingerprint = {};  // of the data the order of samples refers to
  Json extra = Json::object();           // further members of the manifest, by name
};

// StorageError naming path, wanted and free bytes unless `bytes` and 5 % more are free there.
void check_free_space(const Path& directory, int64_t bytes);

class CheckpointWriter {
 public:
  // Touches nothing. ConfigError for an unusable run id or a negative step.
  explicit CheckpointWriter(CheckpointTarget target, CrashPoints crash = {});

  // Rank 0: creates the checkpoint directory if need be, removes a leftover of this very name, creates the temporary one.
  void begin();
  // Writes one durable file and returns its fragment of the manifest. StorageError from the file system, with the temporary
  // directory left to abandon().
  Json write_tensors(std::string_view file_name, const std::vector<CheckpointTensor>& tensors);
  Json write_text(std::string_view file_name, std::string_view content);
  // Rank 0, with the fragments of all ranks: manifest, rename to the final name, `latest`. CheckpointError if two fragments
  // hold one file or key, or if a complete checkpoint of this step exists (never overwritten; a damaged one is moved
  // aside to "damaged-step-...", with a warning). Returns the final path.
  Path publish(const std::vector<Json>& fragments, const ManifestInformation& information);
  // Rank 0: removes the temporary directory; never throws, a failure is logged.
  void abandon() noexcept;

  const Path& temporary_path() const { return temporary_; }
  const Path& final_path() const { return final_; }

 private:
  CheckpointTarget target_;
  CrashPoints crash_;
  Path temporary_;
  Path final_;
};

}  // namespace dmuon
