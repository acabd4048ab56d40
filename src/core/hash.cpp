#include "dmuon/core/hash.h"

#include <xxhash.h>

#include <new>

namespace dmuon {

uint64_t hash_bytes(const void* data, int64_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, static_cast<size_t>(bytes), seed); }

std::string hash_to_hex(uint64_t hash) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) out[static_cast<size_t>(i)] = digits[hash & 15];
  return out;
}

struct StreamingHash::State {
  State() : state(XXH3_createState()) {
    if (state == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(state);
  }
  ~State() { XXH3_freeState(state); }
  XXH3_state_t* state;
};

StreamingHash::StreamingHash() : state_(std::make_unique<State>()) {}
StreamingHash::~StreamingHash() = default;
void StreamingHash::update(const void* data, int64_t bytes) { XXH3_64bits_update(state_->state, data, static_cast<size_t>(bytes)); }
uint64_t StreamingHash::digest() const { return XXH3_64bits_digest(state_->state); }

}  // namespace dmuon
