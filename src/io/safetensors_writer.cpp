#include <algorithm>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "dmuon/io/safetensors.h"
#include "io/safetensors_format.h"

namespace dmuon {
namespace {

constexpr int64_t prefix_bytes = 8;

// Offsets are relative to the start of the data here; the caller shifts them once the header's length is known.
std::vector<SafetensorsEntry> arrange(const Path& path, std::vector<SafetensorsDeclaration> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsDeclaration& a, const SafetensorsDeclaration& b) {
    const int64_t size_a = size_of(a.dtype), size_b = size_of(b.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  std::vector<SafetensorsEntry> entries;
  std::vector<std::string> names;
  int64_t offset = 0;
  for (SafetensorsDeclaration& tensor : tensors) {
    const auto refuse = [&](const std::string& problem) {
      throw CheckpointError(text(path.string(), ": tensor \"", printable_name(tensor.name), "\" cannot be written: ", problem));
    };
    if (const std::string problem = tensor_name_problem(tensor.name, SafetensorsLimits{}.name_bytes); !problem.empty())
      refuse("its name " + problem);
    if (tensor.name == "__metadata__") refuse("the format reserves this name");
    const auto bytes = checked_multiply(tensor.shape.elements(), size_of(tensor.dtype));
    const auto end = bytes ? checked_add(offset, *bytes) : std::nullopt;
    if (!end) refuse(text("the size of ", name_of(tensor.dtype), tensor.shape.to_string(), " overflows"));
    names.push_back(tensor.name);
    entries.push_back({std::move(tensor.name), std::string(safetensors_dtype(tensor.dtype)), tensor.dtype, tensor.shape, offset, *bytes});
    offset = *end;
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    throw CheckpointError(text(path.string(), ": tensor \"", *twice, "\" is declared twice"));
  return entries;
}

std::string make_header(const std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata) {
  Json::Object header;
  if (!metadata.empty()) {
    Json strings = Json::object();
    for (const auto& [key, value] : metadata) strings.set(key, value);
    header.emplace_back("__metadata__", std::move(strings));
  }
  for (const SafetensorsEntry& entry : entries) {
    Json::Array shape;
    for (const int64_t size : entry.shape.sizes()) shape.emplace_back(size);
    header.emplace_back(entry.name, Json::Object{{"dtype", entry.dtype},
                                                 {"shape", std::move(shape)},
                                                 {"data_offsets", Json::Array{Json(entry.offset), Json(entry.offset + entry.bytes)}}});
  }
  std::string out = Json(std::move(header)).dump();
  out.resize(static_cast<size_t>(round_up(static_cast<int64_t>(out.size()), 8)), ' ');
  return out;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const Path& path, std::vector<SafetensorsDeclaration> tensors, SafetensorsMetadata metadata)
    : path_(path), entries_(arrange(path, std::move(tensors))), file_(path) {
  const std::string header = make_header(entries_, metadata);
  const auto length = static_cast<int64_t>(header.size());
  if (length > SafetensorsLimits{}.header_bytes || static_cast<int64_t>(entries_.size()) > SafetensorsLimits{}.tensors)
    throw CheckpointError(text(path.string(), ": ", entries_.size(), " tensors with a header of ", length,
                               " bytes are more than one safetensors file may hold; split them over several files"));
  unsigned char prefix[prefix_bytes];
  for (int i = 0; i < prefix_bytes; ++i) prefix[i] = static_cast<unsigned char>(static_cast<uint64_t>(length) >> (8 * i));
  put(prefix, prefix_bytes);
  put(header.data(), length);
  for (SafetensorsEntry& entry : entries_) entry.offset += prefix_bytes + length;
  tensor_hash_ = std::make_unique<StreamingHash>();
  finish_tensors();
}

void SafetensorsWriter::put(const void* data, int64_t bytes) {
  file_.write(data, bytes);
  file_hash_.update(data, bytes);
}

void SafetensorsWriter::finish_tensors() {
  while (current_ < entries_.size() && written_ == entries_[current_].bytes) {
    tensor_hashes_.push_back(tensor_hash_->digest());
    tensor_hash_ = std::make_unique<StreamingHash>();
    written_ = 0;
    ++current_;
  }
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  if (bytes == 0) return;
  if (current_ == entries_.size()) throw CheckpointError(text(path_.string(), ": more data than the declared tensors hold"));
  const SafetensorsEntry& entry = entries_[current_];
  if (bytes < 0 || bytes > entry.bytes - written_)
    throw CheckpointError(text(path_.string(), ": ", bytes, " bytes at ", written_, " cross the end of tensor \"", entry.name, "\" of ",
                               entry.bytes, " bytes"));
  put(data, bytes);
  tensor_hash_->update(data, bytes);
  written_ += bytes;
  finish_tensors();
}

void SafetensorsWriter::close() {
  if (current_ != entries_.size())
    throw CheckpointError(text(path_.string(), ": only ", written_, " of ", entries_[current_].bytes, " bytes of tensor \"",
                               entries_[current_].name, "\" were written"));
  file_.close();
}

}  // namespace dmuon
