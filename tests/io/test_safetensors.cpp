// Round trips, layout and the files that must be accepted.
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "dmuon/core/hash.h"
#include "dmuon/core/json.h"
#include "dmuon/io/safetensors.h"
#include "io/io_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

std::string pattern(int64_t bytes, int seed) {
  std::string out(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 31 + static_cast<size_t>(seed) * 17 + (i >> 8));
  return out;
}

}  // namespace

TEST_CASE("what is written in pieces reads back byte for byte, for every dtype and odd shape") {
  TemporaryDirectory directory;
  const Path path = directory / "model.safetensors";
  const std::vector<SafetensorsDeclaration> tensors = {
      {"scalar", DType::float32, Shape{}},
      {"empty", DType::float64, Shape{3, 0, 5}},
      {"row", DType::bfloat16, Shape{1, 7}},
      {"half", DType::float16, Shape{3, 5}},
      {"tokens", DType::int64, Shape{13}},
      {"i32", DType::int32, Shape{2, 3, 5, 7}},
      {"i16", DType::int16, Shape{9}},
      {"i8", DType::int8, Shape{3}},
      {"u8", DType::uint8, Shape{1, 1, 1, 1, 1, 1, 1, 5}},
      {"block.0.weight", DType::float32, Shape{17}},
      {"f64", DType::float64, Shape{11}},
  };
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}, {"note", "quote \" and \xC3\xA9"}});
  REQUIRE(writer.entries().size() == tensors.size());
  for (size_t i = 0; i < writer.entries().size(); ++i) {
    const std::string data = pattern(writer.entries()[i].bytes, static_cast<int>(i));
    for (size_t begin = 0; begin < data.size(); begin += 5)
      writer.write(data.data() + begin, static_cast<int64_t>(std::min<size_t>(5, data.size() - begin)));
  }
  writer.close();

  const std::string content = read_file(path);
  CHECK(writer.file_bytes() == static_cast<int64_t>(content.size()));
  CHECK(writer.file_hash() == hash_bytes(content.data(), static_cast<int64_t>(content.size())));
  uint64_t header = 0;
  std::memcpy(&header, content.data(), 8);
  CHECK(header % 8 == 0);
  CHECK(content[8] == '{');

  const SafetensorsReader reader(path);
  CHECK(reader.metadata() == SafetensorsMetadata{{"format", "pt"}, {"note", "quote \" and \xC3\xA9"}});
  REQUIRE(reader.entries().size() == tensors.size());
  for (const auto& tensor : tensors) {
    const SafetensorsEntry& entry = reader.at(tensor.name);
    CHECK(entry.element_type == tensor.dtype);
    CHECK(entry.shape == tensor.shape);
    CHECK(entry.offset % size_of(tensor.dtype) == 0);
  }
  for (size_t i = 0; i < writer.entries().size(); ++i) {
    const SafetensorsEntry& entry = writer.entries()[i];
    INFO(entry.name);
    CHECK(reader.at(entry.name).offset == entry.offset);
    std::string data(static_cast<size_t>(entry.bytes), 'x');
    reader.read(entry.name, data.data(), entry.bytes);
    CHECK(data == pattern(entry.bytes, static_cast<int>(i)));
    CHECK(writer.tensor_hash(i) == hash_bytes(data.data(), entry.bytes));
    if (entry.bytes > 4) {
      char part[2];
      reader.read(entry, 3, part, 2);
      CHECK(std::memcmp(part, data.data() + 3, 2) == 0);
    }
    CHECK_THROWS_AS(reader.read(entry, entry.bytes, data.data(), 1), CheckpointError);
    CHECK_THROWS_AS(reader.read(entry, INT64_MAX, data.data(), 1), CheckpointError);
    CHECK_THROWS_AS(reader.read(entry, -1, data.data(), 1), CheckpointError);
  }
}

TEST_CASE("data is ordered by descending element size, then by name") {
  TemporaryDirectory directory;
  SafetensorsWriter writer(
      directory / "f",
      {{"b", DType::float32, Shape{1}}, {"z", DType::int64, Shape{1}}, {"a", DType::uint8, Shape{1}}, {"a2", DType::float32, Shape{1}}});
  std::vector<std::string> names;
  for (const auto& entry : writer.entries()) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"z", "a2", "b", "a"});
}

TEST_CASE("a writer refuses what it could not read back") {
  TemporaryDirectory directory;
  const Path path = directory / "f";
  const auto declare = [&](std::vector<SafetensorsDeclaration> tensors) {
    return message_of<CheckpointError>([&] { SafetensorsWriter writer(path, std::move(tensors)); });
  };
  CHECK(contains(declare({{"w", DType::float32, Shape{1}}, {"v", DType::int8, Shape{1}}, {"w", DType::int8, Shape{1}}}),
                 "\"w\" is declared twice"));
  CHECK(contains(declare({{"", DType::float32, Shape{1}}}), "empty"));
  CHECK(contains(declare({{"__metadata__", DType::float32, Shape{1}}}), "reserves"));
  CHECK(contains(declare({{"../w", DType::float32, Shape{1}}}), ".."));
  CHECK(contains(declare({{"w", DType::float64, Shape{int64_t{1} << 61}}}), "overflows"));
  CHECK_FALSE(std::filesystem::exists(path));

  SafetensorsWriter writer(path, {{"w", DType::int8, Shape{4}}, {"x", DType::int8, Shape{4}}});
  CHECK(contains(message_of<CheckpointError>([&] { writer.write("12345", 5); }), "\"w\""));
  writer.write("1234", 4);
  writer.write("12", 2);
  CHECK(contains(message_of<CheckpointError>([&] { writer.close(); }), "only 2 of 4 bytes of tensor \"x\""));
}

TEST_CASE("a file without tensors is legal") {
  TemporaryDirectory directory;
  SafetensorsWriter writer(directory / "f", {});
  writer.close();
  CHECK(SafetensorsReader(directory / "f").entries().empty());
}

TEST_CASE("accepted: leading whitespace, null metadata, unaligned data, zero-size tensors side by side, foreign dtypes") {
  TemporaryDirectory directory;
  const Path path = directory / "f";
  write_bytes(path, safetensors_bytes(" \t\r\n{\"__metadata__\":null,"
                                      "\"b\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                      "\"z\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[1,1]},"
                                      "\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1,1]},"
                                      "\"f\":{\"data_offsets\":[1,5],\"shape\":[],\"dtype\":\"F32\"},"
                                      "\"q\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[5,8]}}   ",
                                      "\x01"
                                      "abcd"
                                      "xyz"));
  const SafetensorsReader reader(path);
  CHECK(reader.metadata().empty());
  CHECK(reader.entries().size() == 5);
  CHECK_FALSE(reader.at("b").element_type.has_value());
  CHECK(reader.at("f").shape.rank() == 0);
  char four[4], three[3];
  reader.read("f", four, 4);  // begins at an odd byte: copied, never cast
  CHECK(std::memcmp(four, "abcd", 4) == 0);
  reader.read("q", three, 3);
  CHECK(std::memcmp(three, "xyz", 3) == 0);
  CHECK(contains(message_of<CheckpointError>([&] { reader.read("f", four, 3); }), "holds 4 bytes, the destination 3"));
  CHECK(contains(message_of<CheckpointError>([&] { reader.at("fq"); }), "holds no tensor \"fq\"; did you mean"));
}

TEST_CASE("a file that shrinks while open gives an error that names it") {
  TemporaryDirectory directory;
  const Path path = directory / "f";
  write_bytes(path, safetensors_bytes(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "12345678"));
  const SafetensorsReader reader(path);
  REQUIRE(truncate(path.c_str(), reader.file_bytes() - 3) == 0);
  char data[8];
  const std::string message = message_of<StorageError>([&] { reader.read("w", data, 8); });
  CHECK(contains(message, path.string()));
  CHECK(contains(message, "the file ends there"));
}
