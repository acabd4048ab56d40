#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/io/huggingface.h"

namespace dmuon {
namespace {

constexpr int64_t chunk_elements = int64_t{1} << 20;

using Shard = std::vector<const HuggingFaceTensor*>;

int64_t bytes_of(const HuggingFaceTensor& tensor, DType dtype) { return tensor.shape.elements() * size_of(dtype); }

std::vector<Shard> divide(const HuggingFaceExport& request) {
  std::vector<Shard> shards(1);
  int64_t filled = 0;
  for (const HuggingFaceTensor& tensor : request.layout.tensors) {
    const int64_t bytes = bytes_of(tensor, request.dtype);
    if (!shards.back().empty() && bytes > request.shard_bytes - filled) shards.emplace_back(), filled = 0;
    shards.back().push_back(&tensor);
    filled += std::min(bytes, request.shard_bytes);
  }
  return shards;
}

std::string shard_name(size_t index, size_t shards) {
  if (shards == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, shards);
  return name;
}

class TensorWriter {
 public:
  TensorWriter(const HuggingFaceExport& request, SafetensorsWriter& file) : request_(request), file_(file) {}

  void write(const HuggingFaceTensor& tensor) {
    if (tensor.transposed) return write_transposed(tensor);
    const int64_t columns = tensor.shape.rank() > 1 ? tensor.shape[1] : 1;
    std::vector<float> values;
    for (const HuggingFacePart& part : tensor.parts)
      for (int64_t done = 0, all = part.rows * columns; done < all; done += chunk_elements) {
        const int64_t count = std::min(chunk_elements, all - done);
        values.resize(static_cast<size_t>(count));
        request_.read(part.parameter, done, count, values.data());
        put(values.data(), count);
      }
  }

 private:
  void write_transposed(const HuggingFaceTensor& tensor) {
    const int64_t columns = tensor.shape[0], rows = tensor.shape[1];
    std::vector<float> whole(static_cast<size_t>(rows * columns)), line(static_cast<size_t>(rows));
    float* next = whole.data();
    for (const HuggingFacePart& part : tensor.parts) {
      request_.read(part.parameter, 0, part.rows * columns, next);
      next += part.rows * columns;
    }
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < rows; ++r) line[static_cast<size_t>(r)] = whole[static_cast<size_t>(r * columns + c)];
      put(line.data(), rows);
    }
  }

  void put(const float* values, int64_t count) {
    if (request_.dtype == DType::float32) return file_.write(values, count * 4);
    narrow_.resize(static_cast<size_t>(count));
    std::transform(values, values + count, narrow_.begin(), [](float value) { return bfloat16(value); });
    file_.write(narrow_.data(), count * 2);
  }

  const HuggingFaceExport& request_;
  SafetensorsWriter& file_;
  std::vector<bfloat16> narrow_;
};

void write_shard(const HuggingFaceExport& request, const Shard& shard, const Path& path) {
  std::vector<SafetensorsDeclaration> declarations;
  for (const HuggingFaceTensor* tensor : shard) declarations.push_back({tensor->name, request.dtype, tensor->shape});
  SafetensorsWriter file(path, std::move(declarations));
  TensorWriter writer(request, file);
  for (const SafetensorsEntry& entry : file.entries())
    writer.write(**std::find_if(shard.begin(), shard.end(), [&](const HuggingFaceTensor* tensor) { return tensor->name == entry.name; }));
  file.close();
}

void write_all(const HuggingFaceExport& request, const Path& directory) {
  const std::vector<Shard> shards = divide(request);
  Json map = Json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    write_shard(request, shards[i], directory / name);
    for (const HuggingFaceTensor* tensor : shards[i]) {
      map.set(tensor->name, name);
      total += bytes_of(*tensor, request.dtype);
    }
  }
  if (shards.size() > 1) {
    Json metadata = Json::object(), index = Json::object();
    metadata.set("total_size", total);
    index.set("metadata", std::move(metadata));
    index.set("weight_map", std::move(map));
    write_file_atomically(directory / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  Json config = request.config;
  config.set("torch_dtype", name_of(request.dtype));
  write_file_atomically(directory / "config.json", config.dump(2) + "\n");
  for (const auto& [name, content] : request.files) write_file_atomically(directory / name, content);
}

}  // namespace

void write_huggingface(const HuggingFaceExport& request) {
  if (request.dtype != DType::float32 && request.dtype != DType::bfloat16)
    throw ConfigError(text("a Hugging Face directory is written in float32 or bfloat16, not in ", name_of(request.dtype)));
  if (request.shard_bytes < 1) throw ConfigError(text("shards of ", request.shard_bytes, " bytes: expected at least 1"));
  Path target = std::filesystem::absolute(request.directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // a trailing slash
  std::error_code failure;
  if (std::filesystem::symlink_status(target, failure).type() != std::filesystem::file_type::not_found)
    throw ConfigError(text(target.string(), " exists; an export never overwrites: choose another directory, or remove it"));
  const Path temporary = target.string() + text(".tmp-", getpid());
  std::filesystem::create_directories(temporary, failure);
  if (failure) throw StorageError(text("cannot create ", temporary.string(), ": ", failure.message()));
  try {
    write_all(request, temporary);
    fsync_directory(temporary);
    rename_durably(temporary, target);
  } catch (...) {
    std::filesystem::remove_all(temporary, failure);
    throw;
  }
}

}  // namespace dmuon
