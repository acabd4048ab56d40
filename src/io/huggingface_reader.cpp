#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/io/huggingface.h"
#include "io/safetensors_format.h"

namespace dmuon {
namespace {

constexpr int64_t chunk_bytes = int64_t{4} << 20;  // of tensors that are compared

bool readable(const SafetensorsEntry& entry) {
  return entry.element_type == DType::float32 || entry.element_type == DType::bfloat16 || entry.element_type == DType::float16;
}

// Widens `count` elements that lie at the end of `out`, in place: an element's four bytes end before the next one's narrow form.
void widen_in_place(DType type, int64_t count, float* out) {
  const auto each = [&](auto element) {
    const char* from = reinterpret_cast<const char*>(out) + count * static_cast<int64_t>(sizeof(float) - sizeof element);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&element, from + i * static_cast<int64_t>(sizeof element), sizeof element);
      const auto wide = static_cast<float>(element);
      std::memcpy(out + i, &wide, sizeof wide);
    }
  };
  if (type == DType::bfloat16)
    each(bfloat16());
  else if (type == DType::float16)
    each(float16());
}

// Elements [first, first + count) of a stored tensor, without memory beyond `out`.
void read_elements(const HuggingFaceFiles::Location& location, int64_t first, int64_t count, float* out) {
  const DType type = *location.entry->element_type;
  const int64_t size = size_of(type);
  char* at = reinterpret_cast<char*>(out) + count * (static_cast<int64_t>(sizeof(float)) - size);
  location.file->read(*location.entry, first * size, at, count * size);
  widen_in_place(type, count, out);
}

std::string list(const std::vector<std::string>& names) {
  constexpr size_t shown = 5;
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(shown, names.size()); ++i) some.push_back(printable_name(names[i]));
  return join(some, ", ") + (names.size() > shown ? text(" and ", names.size() - shown, " more") : "");
}

int64_t columns_of(const Shape& shape, bool transposed) { return shape.rank() < 2 ? 1 : transposed ? shape[0] : shape[1]; }

}  // namespace

HuggingFaceReader::HuggingFaceReader(const Path& directory, const HuggingFaceLayout& layout, const Inventory& inventory)
    : files_(directory), notes_(files_.notes()) {
  const auto& names = files_.names();
  if (!layout.optional_prefix.empty() &&
      std::none_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(layout.optional_prefix); }))
    removed_prefix_ = layout.optional_prefix;
  check_names(layout);
  for (const HuggingFaceTensor& tensor : layout.tensors) {
    const HuggingFaceFiles::Location& location = *files_.find(stored_name(tensor.name));
    const SafetensorsEntry& entry = *location.entry;
    if (entry.shape != tensor.shape || !readable(entry))
      throw CheckpointError(text(location.file->path().string(), ": tensor \"", printable_name(entry.name), "\" is ", entry.dtype,
                                 entry.shape.to_string(), "; the model of config.json needs F32, BF16 or F16 ", tensor.shape.to_string()));
    add_parts(tensor, location, inventory);
  }
  for (const ParameterDeclaration& parameter : inventory.parameters())
    if (!sources_.contains(parameter.name)) throw ConfigError(text("parameter ", parameter.name, " has no tensor in Hugging Face files"));
}

std::string HuggingFaceReader::stored_name(const std::string& name) const {
  return !removed_prefix_.empty() && name.starts_with(removed_prefix_) ? name.substr(removed_prefix_.size()) : name;
}

void HuggingFaceReader::check_names(const HuggingFaceLayout& layout) {
  std::unordered_set<std::string> expected;
  std::vector<std::string> missing, unexpected;
  for (const HuggingFaceTensor& tensor : layout.tensors) {
    const std::string name = stored_name(tensor.name);
    expected.insert(name);
    if (files_.find(name) == nullptr) missing.push_back(name);
  }
  for (const std::string& name : layout.ignored) expected.insert(stored_name(name));
  if (!layout.tied_copy.empty()) {
    const std::string copy = stored_name(layout.tied_copy), original = stored_name(layout.tied_to);
    expected.insert(copy);
    if (files_.find(copy) != nullptr) tied_copy_ = copy, tied_to_ = original;
    notes_.push_back(text("tied: ", copy, " <- ", original, tied_copy_.empty() ? "" : "; the files hold it as well"));
  }
  for (const std::string& name : files_.names())
    if (!expected.contains(name)) unexpected.push_back(name);
  std::sort(unexpected.begin(), unexpected.end());
  const std::string where = files_.directory().string();
  if (!missing.empty())
    throw CheckpointError(text(where, " lacks ", missing.size(), missing.size() == 1 ? " tensor" : " tensors", " of the model: ",
                               list(missing), unexpected.empty() ? "" : text("; it holds, not expected: ", list(unexpected))));
  if (!unexpected.empty())
    throw CheckpointError(text(where, " holds ", unexpected.size(), unexpected.size() == 1 ? " tensor" : " tensors",
                               " that the model of its config.json does not have: ", list(unexpected)));
}

void HuggingFaceReader::add_parts(const HuggingFaceTensor& tensor, const HuggingFaceFiles::Location& location, const Inventory& inventory) {
  const int64_t columns = columns_of(tensor.shape, tensor.transposed);
  int64_t row = 0;
  for (const HuggingFacePart& part : tensor.parts) {
    const ParameterDeclaration* parameter = inventory.find(part.parameter);
    if (parameter == nullptr) throw ConfigError(text(tensor.name, ": the model has no parameter ", part.parameter));
    const Shape& shape = parameter->shape;
    if (shape.rank() != tensor.shape.rank() || (shape.rank() > 1 && shape[1] != columns) || shape[0] < part.rows)
      throw ConfigError(
          text(tensor.name, " ", tensor.shape.to_string(), " does not fit parameter ", part.parameter, " ", shape.to_string()));
    Source source{location, tensor.transposed, part.rows, columns, row, 0, shape.elements()};
    source.tensor_rows = tensor.shape[tensor.transposed ? 1 : 0];
    sources_.emplace(part.parameter, source);
    row += part.rows;
  }
}

void HuggingFaceReader::read(std::string_view parameter, int64_t first, int64_t count, float* out) const {
  const auto found = sources_.find(std::string(parameter));
  if (found == sources_.end()) throw ShapeError(text("no parameter ", parameter, " in ", files_.directory().string()));
  const Source& source = found->second;
  if (first < 0 || count < 0 || first > source.parameter_elements - count)
    throw ShapeError(text("elements [", first, ", ", first, " + ", count, ") leave parameter ", parameter));
  const int64_t stored = std::clamp<int64_t>(source.rows * source.columns - first, 0, count);
  std::fill(out + stored, out + count, 0.0F);
  if (stored == 0) return;
  if (!source.transposed) {
    read_elements(source.location, source.first_row * source.columns + first, stored, out);
    return;
  }
  // Rows of ours are columns there: for each of their rows the needed columns, which lie side by side.
  const int64_t first_row = first / source.columns, last_row = (first + stored - 1) / source.columns;
  std::vector<float> line(static_cast<size_t>(last_row - first_row + 1));
  for (int64_t c = 0; c < source.columns; ++c) {
    read_elements(source.location, c * source.tensor_rows + source.first_row + first_row, last_row - first_row + 1, line.data());
    for (int64_t r = first_row; r <= last_row; ++r) {
      const int64_t index = r * source.columns + c - first;
      if (index >= 0 && index < stored) out[index] = line[static_cast<size_t>(r - first_row)];
    }
  }
}

void HuggingFaceReader::check_tied_copy(int part, int parts) const {
  if (tied_copy_.empty()) return;
  const HuggingFaceFiles::Location copy = *files_.find(tied_copy_), original = *files_.find(tied_to_);
  const auto refuse = [&](const std::string& problem) {
    throw CheckpointError(text(copy.file->path().string(), ": ", tied_copy_, " is tied to ", tied_to_, " (tie_word_embeddings), but ",
                               problem, "; set tie_word_embeddings to false if the head is one of its own"));
  };
  if (copy.entry->shape != original.entry->shape || copy.entry->dtype != original.entry->dtype)
    refuse(
        text("is ", copy.entry->dtype, copy.entry->shape.to_string(), ", not ", original.entry->dtype, original.entry->shape.to_string()));
  const int64_t share = (copy.entry->bytes + parts - 1) / parts;
  const int64_t begin = std::min(copy.entry->bytes, part * share), end = std::min(copy.entry->bytes, begin + share);
  std::vector<char> a(static_cast<size_t>(std::min(chunk_bytes, end - begin))), b(a.size());
  for (int64_t done = begin; done < end; done += chunk_bytes) {
    const int64_t now = std::min(chunk_bytes, end - done);
    copy.file->read(*copy.entry, done, a.data(), now);
    original.file->read(*original.entry, done, b.data(), now);
    if (std::memcmp(a.data(), b.data(), static_cast<size_t>(now)) != 0) refuse("holds other values");
  }
}

}  // namespace dmuon
