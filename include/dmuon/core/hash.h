// xxHash (XXH3, 64 bits) of bytes: checksums of checkpoint files, replica hashes, plan and config hashes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace dmuon {

uint64_t hash_bytes(const void* data, int64_t bytes, uint64_t seed = 0);
std::string hash_to_hex(uint64_t hash);  // 16 lower-case digits

// The same hash over data that arrives in pieces.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  void update(const void* data, int64_t bytes);
  uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dmuon
