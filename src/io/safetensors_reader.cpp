#include <algorithm>
#include <bit>
#include <tuple>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "dmuon/io/safetensors.h"
#include "io/input_file.h"
#include "io/safetensors_format.h"

namespace dmuon {
namespace {

constexpr int64_t prefix_bytes = 8;

// Values of one tensor's description: object, dtype, shape and its sizes, data_offsets and its two numbers.
constexpr int64_t values_per_tensor = 6 + Shape::maximum_rank;

// Validates one header; every refusal names the file and, once known, the tensor.
class HeaderParser {
 public:
  HeaderParser(const InputFile& file, const SafetensorsLimits& limits) : file_(file), limits_(limits) {}

  void parse(std::vector<SafetensorsEntry>& entries, SafetensorsMetadata& metadata) {
    const Json header = parse_header();
    if (!header.is_object()) refuse(text("the header must be an object, found ", header.type_name()));
    for (const auto& [name, value] : header.as_object()) {
      if (name == "__metadata__") {
        parse_metadata(value, metadata);
        continue;
      }
      if (static_cast<int64_t>(entries.size()) >= limits_.tensors) refuse(text("more than ", limits_.tensors, " tensors"));
      entries.push_back(parse_entry(name, value));
    }
    check_layout(entries);
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw CheckpointError(text(file_.path().string(), ": not a valid safetensors file: ", problem));
  }
  [[noreturn]] void refuse(std::string_view tensor, const std::string& problem) const {
    refuse(text("tensor \"", printable_name(tensor), "\": ", problem));
  }

  Json parse_header() {
    if (file_.bytes() < prefix_bytes) refuse(text("it holds ", file_.bytes(), " bytes, too few for the header length"));
    unsigned char prefix[prefix_bytes];
    file_.read(0, prefix, prefix_bytes);
    uint64_t length = 0;
    for (int i = prefix_bytes - 1; i >= 0; --i) length = (length << 8) | prefix[i];
    if (length == 0) refuse("the header is empty");
    if (length > static_cast<uint64_t>(limits_.header_bytes))
      refuse(text("a header of ", length, " bytes (at most ", limits_.header_bytes, ")"));
    if (static_cast<int64_t>(length) > file_.bytes() - prefix_bytes)
      refuse(text("a header of ", length, " bytes in a file of ", file_.bytes()));
    data_begin_ = prefix_bytes + static_cast<int64_t>(length);
    std::string source(static_cast<size_t>(length), '\0');
    file_.read(prefix_bytes, source.data(), static_cast<int64_t>(length));
    try {
      return parse_json(source, file_.path().string(), {128, limits_.tensors * values_per_tensor + 100'000});
    } catch (const ConfigError& failure) {
      throw CheckpointError(text("not a valid safetensors header: ", failure.what()));
    }
  }

  void parse_metadata(const Json& value, SafetensorsMetadata& metadata) const {
    if (value.is_null()) return;
    if (!value.is_object()) refuse(text("__metadata__ must be an object of strings, found ", value.type_name()));
    for (const auto& [key, item] : value.as_object()) {
      if (!item.is_string()) refuse(text("__metadata__ \"", printable_name(key), "\" must be a string, found ", item.type_name()));
      metadata.emplace_back(key, item.as_string());
    }
  }

  SafetensorsEntry parse_entry(const std::string& name, const Json& value) const {
    if (const std::string problem = tensor_name_problem(name, limits_.name_bytes); !problem.empty()) refuse(name, "its name " + problem);
    if (!value.is_object()) refuse(name, text("must be an object, found ", value.type_name()));
    const Json *dtype = nullptr, *shape = nullptr, *offsets = nullptr;
    for (const auto& [key, item] : value.as_object()) {
      if (key == "dtype")
        dtype = &item;
      else if (key == "shape")
        shape = &item;
      else if (key == "data_offsets")
        offsets = &item;
      else
        refuse(name, text("unknown field \"", printable_name(key), "\" (expected dtype, shape, data_offsets)"));
    }
    if (dtype == nullptr) refuse(name, "has no dtype");
    if (shape == nullptr) refuse(name, "has no shape");
    if (offsets == nullptr) refuse(name, "has no data_offsets");

    SafetensorsEntry entry;
    entry.name = name;
    if (!dtype->is_string()) refuse(name, text("dtype must be a string, found ", dtype->type_name()));
    const SafetensorsType* type = find_safetensors_type(dtype->as_string());
    if (type == nullptr) refuse(name, text("unknown dtype \"", printable_name(dtype->as_string()), "\""));
    entry.dtype = dtype->as_string();
    entry.element_type = type->dtype;
    entry.shape = parse_shape(name, *shape);
    const auto bits = checked_multiply<int64_t>(entry.shape.elements(), type->bits);
    if (!bits) refuse(name, text("the byte count of ", entry.dtype, entry.shape.to_string(), " overflows"));
    if (*bits % 8 != 0) refuse(name, text(entry.dtype, entry.shape.to_string(), " does not end on a byte"));

    const std::vector<int64_t> range = parse_integers(name, "data_offsets", *offsets, 2);
    if (range.size() != 2) refuse(name, text("data_offsets must hold 2 numbers, found ", range.size()));
    const int64_t data_bytes = file_.bytes() - data_begin_;
    if (range[1] < range[0]) refuse(name, text("data_offsets [", range[0], ", ", range[1], "] end before they begin"));
    if (range[1] > data_bytes)
      refuse(name, text("data_offsets [", range[0], ", ", range[1], "] leave the ", data_bytes, " bytes of data; the file is truncated"));
    if (range[1] - range[0] != *bits / 8)
      refuse(name, text("data_offsets [", range[0], ", ", range[1], "] hold ", range[1] - range[0], " bytes, ", entry.dtype,
                        entry.shape.to_string(), " needs ", *bits / 8));
    entry.offset = data_begin_ + range[0];
    entry.bytes = range[1] - range[0];
    return entry;
  }

  std::vector<int64_t> parse_integers(std::string_view name, std::string_view field, const Json& value, size_t maximum) const {
    if (!value.is_array()) refuse(name, text(field, " must be an array, found ", value.type_name()));
    const Json::Array& items = value.as_array();
    if (items.size() > maximum) refuse(name, text(field, " holds ", items.size(), " numbers (at most ", maximum, ")"));
    std::vector<int64_t> numbers;
    for (const Json& item : items) {
      if (!item.is_integer()) refuse(name, text(field, " must hold integers, found ", item.type_name()));
      if (item.as_number() < 0 || item.as_number() > 0x1p62) refuse(name, text(field, " holds ", item.dump(), ", which is out of range"));
      numbers.push_back(item.as_integer());
    }
    return numbers;
  }

  Shape parse_shape(std::string_view name, const Json& value) const {
    const std::vector<int64_t> sizes = parse_integers(name, "shape", value, Shape::maximum_rank);
    try {
      return Shape(std::span<const int64_t>(sizes));
    } catch (const ShapeError& failure) {
      refuse(name, failure.what());
    }
  }

  // In the order of their data, tensors must follow each other without hole or overlap from the first to the last byte.
  void check_layout(std::vector<SafetensorsEntry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
    });
    int64_t expected = data_begin_;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.offset != expected)
        refuse(entry.name, text("its data begins at ", entry.offset - data_begin_, ", expected ", expected - data_begin_,
                                entry.offset < expected ? " (it overlaps another tensor)" : " (there is a hole before it)"));
      expected += entry.bytes;
    }
    if (expected != file_.bytes()) refuse(text(file_.bytes() - expected, " bytes follow the last tensor"));
  }

  const InputFile& file_;
  SafetensorsLimits limits_;
  int64_t data_begin_ = 0;
};

}  // namespace

static_assert(std::endian::native == std::endian::little, "tensor data is copied without swapping bytes");

SafetensorsReader::SafetensorsReader(const Path& path, const SafetensorsLimits& limits)
    : path_(path), file_(std::make_shared<InputFile>(path)), file_bytes_(file_->bytes()) {
  HeaderParser(*file_, limits).parse(entries_, metadata_);
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

int64_t SafetensorsReader::bytes_read() const { return file_->bytes_read(); }

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsReader::at(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : entries_) names.push_back(entry.name);
  const std::string close = nearest(name, names);
  throw CheckpointError(text(path_.string(), " holds no tensor \"", printable_name(name), "\"",
                             close.empty() ? std::string() : text("; did you mean \"", close, "\"?")));
}

void SafetensorsReader::read(std::string_view name, void* destination, int64_t bytes) const {
  const SafetensorsEntry& entry = at(name);
  if (bytes != entry.bytes)
    throw CheckpointError(text(path_.string(), ": tensor \"", printable_name(name), "\" ", entry.dtype, entry.shape.to_string(), " holds ",
                               entry.bytes, " bytes, the destination ", bytes));
  file_->read(entry.offset, destination, bytes);
}

void SafetensorsReader::read(const SafetensorsEntry& entry, int64_t offset, void* destination, int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > entry.bytes - bytes)
    throw CheckpointError(text(path_.string(), ": bytes [", offset, ", ", offset, " + ", bytes, ") leave the ", entry.bytes,
                               " bytes of tensor \"", printable_name(entry.name), "\""));
  file_->read(entry.offset + offset, destination, bytes);
}

}  // namespace dmuon
