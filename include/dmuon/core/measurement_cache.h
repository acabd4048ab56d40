// Measurements that outlive a run (tuned batch sizes, cost of owner updates), in one JSON file per kind and machine:
// <directory>/<kind>-<16 hexadecimal digits of the key>.json. What was measured on other hardware, with other libraries
// or another number of threads never matches.
//
// A cache never stops a run. A file that is damaged, written by another version or for another key is ignored, one that
// cannot be written is not written; each says so in exactly one warning line, and the work is measured again. Files are
// replaced atomically, so any number of processes may write at once: readers see one of the written files whole. Entries
// that another process has added meanwhile are kept. Not thread-safe; one object per thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"

namespace dmuon {

// What a measurement depends on besides its own name. BackendInformation has the first three.
struct MeasurementKey {
  std::string hardware;         // "AMD EPYC 7B13"
  std::string instruction_set;  // "avx2"
  std::string libraries;        // every library whose speed counts, with its version: "oneDNN 2.6.3"
  int threads = 1;              // of the rank that measures
};

// $XDG_CACHE_HOME/dmuon, else $HOME/.cache/dmuon, else empty: no cache.
Path default_cache_directory();

class MeasurementCache {
 public:
  static constexpr int version = 1;  // of the file format; a file of any other is ignored

  // Reads the file if there is one. `kind` is a short name for the file ("newton_schulz"). An empty directory keeps
  // everything in memory.
  MeasurementCache(std::string kind, MeasurementKey key, Path directory = default_cache_directory());

  // Null when nothing is known under this name. Valid until the next set() or save().
  const Json* find(std::string_view name) const;
  void set(std::string_view name, Json value);
  // Writes what set() has changed since the last save, with what the file has gained meanwhile; makes the directory.
  void save();

  const Path& path() const { return path_; }               // empty: memory only
  const std::string& ignored() const { return ignored_; }  // why the file was not used; empty if it was, or is absent

 private:
  using Entries = std::map<std::string, Json, std::less<>>;
  Entries read(std::string& problem) const;

  std::string kind_;
  MeasurementKey key_;
  Path path_;
  Entries entries_;
  Entries changed_;
  std::string ignored_;
  bool unwritable_ = false;
};

}  // namespace dmuon
