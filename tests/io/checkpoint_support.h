// A small checkpoint saved by two make-believe ranks, with content that is a function of step, rank and tensor.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "dmuon/core/random.h"
#include "dmuon/io/checkpoint.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/checkpoint_retention.h"
#include "dmuon/io/checkpoint_writer.h"
#include "io/io_support.h"

namespace dmuon {

inline std::string tensor_content(std::string_view key, int64_t step, int64_t bytes) {
  const Random random(hash_name(key), RandomStream::test, static_cast<uint64_t>(step));
  std::string content(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(random.bits(i));
  return content;
}

inline CheckpointTensor make_tensor(const std::string& key, DType dtype, const Shape& shape, int64_t step) {
  const int64_t size = shape.elements() * size_of(dtype);
  return {key, dtype, shape, [=](int64_t offset, void* destination, int64_t bytes) {
            std::memcpy(destination, tensor_content(key, step, size).data() + offset, static_cast<size_t>(bytes));
          }};
}

struct RankTensors {
  std::vector<CheckpointTensor> model, optimizer;
};
// Rank 0 owns one matrix and its momentum, rank 1 two tensors, one of them with two states.
inline std::vector<RankTensors> two_ranks(int64_t step) {
  return {{{make_tensor("block.0.weight", DType::float32, Shape{13, 7}, step), make_tensor("head", DType::bfloat16, Shape{5}, step)},
           {make_tensor(state_key("block.0.weight", "momentum"), DType::float32, Shape{13, 7}, step)}},
          {{make_tensor("bias", DType::float32, Shape{3}, step)},
           {make_tensor(state_key("bias", "first_moment"), DType::float32, Shape{3}, step),
            make_tensor(state_key("bias", "local", 1), DType::float32, Shape{3}, step)}}};
}

// Every step of the protocol, as the ranks would take them.
inline Path save_checkpoint(const Path& directory, int64_t step, const std::string& run_id = "run1", const CrashPoints& crash = {},
                            const std::vector<RankTensors>& ranks = {}) {
  const std::vector<RankTensors> tensors = ranks.empty() ? two_ranks(step) : ranks;
  const int count = static_cast<int>(tensors.size());
  CheckpointWriter first({directory, step, run_id, 0}, crash);
  first.begin();
  std::vector<Json> fragments;
  for (int rank = 0; rank < count; ++rank) {
    CheckpointWriter writer({directory, step, run_id, rank}, crash);
    fragments.push_back(writer.write_tensors(model_file_name(rank, count), tensors[static_cast<size_t>(rank)].model));
    fragments.push_back(writer.write_tensors(optimizer_file_name(rank), tensors[static_cast<size_t>(rank)].optimizer));
  }
  fragments.push_back(first.write_text("train_state.json", text("{\"step\": ", step, "}\n")));
  fragments.push_back(first.write_text("configuration.json", "{\"model\": {\"width\": 7}}\n"));
  return first.publish(fragments, {count, step * 100, "0123456789abcdef", "fedcba9876543210", Json::Object{{"plan", "greedy"}}});
}

// Whether every tensor of `path` holds what save_checkpoint() wrote for its step.
inline bool content_is_right(const Path& path) {
  const CheckpointReader reader(path);
  for (const CheckpointEntry& entry : reader.tensors()) {
    std::string content(static_cast<size_t>(entry.bytes), '\0');
    reader.read_tensor(entry.key, content.data(), entry.bytes);
    if (content != tensor_content(entry.key, reader.step(), entry.bytes)) return false;
  }
  return reader.train_state().at("step").as_integer() == reader.step();
}

inline std::vector<std::string> names_in(const Path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dmuon
