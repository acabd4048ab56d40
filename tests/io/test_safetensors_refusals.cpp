// Every input that a strict reader must refuse, each with the rule named in the message.
#include <sys/resource.h>
#include <sys/stat.h>

#include <ctime>

#include "dmuon/core/random.h"
#include "dmuon/io/safetensors.h"
#include "io/io_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

struct Refusal {
  std::string what;
  std::string content;
  std::string expected;  // part of the message
};

// One tensor "w" described by `fields`, over `data`.
std::string one(const std::string& fields, const std::string& data = "1234") {
  return safetensors_bytes(text("{\"w\":{", fields, "}}"), data);
}
std::string with_shape(const std::string& shape, const std::string& data = "1234") {
  return one(text("\"dtype\":\"U8\",\"shape\":", shape, ",\"data_offsets\":[0,", data.size(), "]"), data);
}
std::string with_offsets(const std::string& offsets, const std::string& data = "1234") {
  return one(text("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":", offsets), data);
}
std::string with_name(const std::string& name) {
  return safetensors_bytes(text("{\"", name, "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"), "1234");
}
std::string tensor(const std::string& name, const std::string& shape, int begin, int end) {
  return text("\"", name, "\":{\"dtype\":\"U8\",\"shape\":", shape, ",\"data_offsets\":[", begin, ",", end, "]}");
}
std::string two(const std::string& a, const std::string& b, const std::string& data) {
  return safetensors_bytes(text("{", a, ",", b, "}"), data);
}

const std::string good = R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
const std::string w = R"("w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";

std::vector<Refusal> length_refusals() {
  return {
      {"empty file", "", "too few for the header length"},
      {"seven bytes", "1234567", "too few for the header length"},
      {"length 0", length_prefix(0) + "{}", "the header is empty"},
      {"length beyond the file", length_prefix(good.size() + 5) + good + "1234", "a header of"},
      {"length beyond the cap", length_prefix(100'000'001) + good, "at most 100000000"},
      {"length 2^64-1", length_prefix(UINT64_MAX) + good, "at most 100000000"},
      {"length 2^63", length_prefix(uint64_t{1} << 63) + good, "at most 100000000"},
      {"length reaching into the data", length_prefix(good.size() + 2) + good + "1234", "not a valid safetensors header"},
      {"length cutting the JSON", length_prefix(good.size() - 1) + good + "1234", "not a valid safetensors header"},
  };
}

std::vector<Refusal> json_refusals() {
  const auto header = [](const std::string& source) { return safetensors_bytes(source, "1234"); };
  return {
      {"invalid UTF-8", with_name("w\xff"), "not a valid safetensors header"},
      {"overlong UTF-8", with_name("w\xc0\xaf"), "not a valid safetensors header"},
      {"byte order mark", header(text("\xEF\xBB\xBF", good)), "byte order mark"},
      {"array at the top", header("[1]"), "must be an object, found array"},
      {"string at the top", header("\"{}\""), "must be an object, found string"},
      {"garbage after", header(good + "x"), "not a valid safetensors header"},
      {"second object", header(good + "{}"), "not a valid safetensors header"},
      {"NUL padding", header(good + std::string(4, '\0')), "NUL"},
      {"object hidden behind NUL", header(good + std::string(1, '\0') + "{}"), "NUL"},
      {"form feed before", header(text("\f", good)), "not a valid safetensors header"},
      {"lone surrogate", with_name("\\ud800"), "not a valid safetensors header"},
      {"comment", header(text("/* c */", good)), "not a valid safetensors header"},
      {"trailing comma", header(text("{", w, ",}")), "not a valid safetensors header"},
      {"NaN literal", with_shape("[NaN]"), "not a valid safetensors header"},
      {"leading zero", with_shape("[04]"), "not a valid safetensors header"},
      {"tensor null", safetensors_bytes("{\"w\":null}"), "must be an object, found null"},
      {"tensor a number", safetensors_bytes("{\"w\":3}"), "must be an object, found integer"},
      {"200,000 arrays deep", header(std::string(200'000, '[')), "nested deeper than 128"},
      {"200,000 deep inside a shape", with_shape(text(std::string(200'000, '['), std::string(200'000, ']'))), "nested deeper than 128"},
      {"200,000 objects deep inside metadata",
       [&] {
         std::string deep = "{\"__metadata__\":";
         for (int i = 0; i < 200'000; ++i) deep += "{\"a\":";
         return header(deep);
       }(),
       "nested deeper than 128"},
  };
}

std::vector<Refusal> key_refusals() {
  const std::string fields = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
  return {
      {"duplicate tensor", two(w, w, "1234"), "duplicate key \"w\""},
      {"duplicate metadata", safetensors_bytes(text("{\"__metadata__\":{},\"__metadata__\":{},", w, "}"), "1234"),
       "duplicate key \"__metadata__\""},
      {"duplicate key in metadata", safetensors_bytes(text("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"},", w, "}"), "1234"),
       "duplicate key \"a\""},
      {"duplicate field", one(text("\"dtype\":\"U8\",", fields)), "duplicate key \"dtype\""},
      {"metadata number", safetensors_bytes(text("{\"__metadata__\":{\"a\":1},", w, "}"), "1234"), "must be a string"},
      {"metadata nested", safetensors_bytes(text("{\"__metadata__\":{\"a\":{\"b\":\"c\"}},", w, "}"), "1234"), "must be a string"},
      {"metadata an array", safetensors_bytes(text("{\"__metadata__\":[],", w, "}"), "1234"), "object of strings"},
      {"unknown field", one(fields + ",\"strides\":[1]"), "unknown field \"strides\""},
      {"no dtype", one(R"("shape":[4],"data_offsets":[0,4])"), "has no dtype"},
      {"no shape", one(R"("dtype":"U8","data_offsets":[0,4])"), "has no shape"},
      {"no offsets", one(R"("dtype":"U8","shape":[4])"), "has no data_offsets"},
      {"empty name", with_name(""), "is empty"},
      {"escaped NUL in the name", with_name("w\\u0000x"), "control character"},
      {"newline in the name", with_name("w\\nx"), "control character"},
      {"parent directory in the name", with_name("../w"), "path component"},
      {"parent directory inside the name", with_name("a/../w"), "path component"},
      {"parent directory with backslashes", with_name("a\\\\..\\\\w"), "path component"},
      {"absolute name", with_name("/etc/passwd"), "begins with"},
      {"name of 100 KiB", with_name(std::string(102'400, 'n')), "102400 bytes long"},
  };
}

std::vector<Refusal> shape_refusals() {
  std::string thousand = "[1";
  for (int i = 0; i < 999; ++i) thousand += ",1";
  const auto f4 = [](const std::string& type, int count) {
    return one(text("\"dtype\":\"", type, "\",\"shape\":[", count, "],\"data_offsets\":[0,4]"));
  };
  return {
      {"unknown dtype", one(R"("dtype":"F128","shape":[4],"data_offsets":[0,4])"), "unknown dtype \"F128\""},
      {"lower-case dtype", one(R"("dtype":"u8","shape":[4],"data_offsets":[0,4])"), "unknown dtype \"u8\""},
      {"dtype a number", one(R"("dtype":8,"shape":[4],"data_offsets":[0,4])"), "dtype must be a string"},
      {"shape an object", with_shape("{}"), "shape must be an array"},
      {"negative dimension", with_shape("[-4]"), "out of range"},
      {"two negative dimensions", with_shape("[-2,-2]"), "out of range"},
      {"float dimension", with_shape("[4.0]"), "must hold integers, found number"},
      {"exponent dimension", with_shape("[4e0]"), "must hold integers, found number"},
      {"string dimension", with_shape("[\"4\"]"), "must hold integers, found string"},
      {"dimension beyond 64 bits", with_shape("[18446744073709551620]"), "must hold integers"},
      {"product overflow", with_shape("[4294967296,4294967296]"), "overflows"},
      {"product overflow to the right size", with_shape("[4,4611686018427387904,4]", ""), "overflows"},
      {"byte count overflow", one(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])", ""), "overflows"},
      {"rank 9", with_shape("[1,1,1,1,1,1,1,1,4]"), "at most 8"},
      {"rank 1000", with_shape(thousand + "]"), "at most 8"},
      {"zero beside 2^64-1", with_shape("[0,18446744073709551615,18446744073709551615]", ""), "out of range"},
      {"zero beside 2^62", with_shape("[0,4611686018427387904,4611686018427387904]", ""), "overflows"},
      {"zero after 2^62", with_shape("[4611686018427387904,4611686018427387904,0]", ""), "overflows"},
      {"F4 not a byte multiple", f4("F4", 7), "does not end on a byte"},
      {"F6 not a byte multiple", f4("F6_E2M3", 5), "does not end on a byte"},
  };
}

std::vector<Refusal> offset_refusals() {
  return {
      {"one offset", with_offsets("[0]"), "must hold 2 numbers"},
      {"three offsets", with_offsets("[0,4,4]"), "at most 2"},
      {"offsets a string", with_offsets("\"0,4\""), "must be an array"},
      {"negative offset", with_offsets("[-4,0]"), "out of range"},
      {"offset 2^64-1", with_offsets("[0,18446744073709551615]"), "out of range"},
      {"end before begin", with_offsets("[4,0]"), "end before they begin"},
      {"range too short", with_offsets("[0,3]", "123"), "needs 4"},
      {"range too long", with_offsets("[0,5]", "12345"), "needs 4"},
      {"past the end of the file", with_offsets("[4,8]"), "truncated"},
      {"two bytes missing", with_offsets("[0,4]", "12"), "truncated"},
      {"trailing byte", with_offsets("[0,4]", "12345"), "1 bytes follow"},
      {"trailing archive", with_offsets("[0,4]", "1234PK\x03\x04"), "4 bytes follow"},
      {"hole at the start", with_offsets("[1,5]", "12345"), "there is a hole before it"},
      {"hole between", two(tensor("a", "[2]", 0, 2), tensor("b", "[2]", 3, 5), "12345"), "there is a hole before it"},
      {"partial overlap", two(tensor("a", "[3]", 0, 3), tensor("b", "[3]", 2, 5), "12345"), "overlaps"},
      {"one range twice", two(tensor("a", "[4]", 0, 4), tensor("b", "[4]", 0, 4), "1234"), "overlaps"},
      {"zero-size tensor inside another", two(tensor("a", "[4]", 0, 4), tensor("b", "[0]", 2, 2), "1234"), "overlaps"},
      {"no tensors but data", safetensors_bytes("{}", "1234"), "4 bytes follow"},
  };
}

}  // namespace

TEST_CASE("the header that the refusals vary is itself accepted") {
  TemporaryDirectory directory;
  write_bytes(directory / "f", safetensors_bytes(good, "1234"));
  CHECK(SafetensorsReader(directory / "f").entries().size() == 1);
  for (const char* name : {"a..b", "layer/0/w", "...", "\xC3\xA9"}) {
    write_bytes(directory / "f", with_name(name));
    CHECK_NOTHROW(SafetensorsReader(directory / "f"));
  }
}

TEST_CASE("malformed files are refused and named") {
  TemporaryDirectory directory;
  const Path path = directory / "f.safetensors";
  for (const auto& group : {length_refusals(), json_refusals(), key_refusals(), shape_refusals(), offset_refusals()})
    for (const Refusal& refusal : group) {
      INFO(refusal.what);
      write_bytes(path, refusal.content);
      const std::string message = message_of<CheckpointError>([&] { SafetensorsReader reader(path); });
      INFO(message.substr(0, 500));
      CHECK(contains(message, path.string()));
      CHECK(contains(message, refusal.expected));
      CHECK(message.size() < 1000 + path.string().size());  // an attacker's text does not flood the log
    }
}

TEST_CASE("a million tensors are refused in bounded time and memory") {
  TemporaryDirectory directory;
  const Path path = directory / "f";
  std::string header = "{";
  for (int i = 0; i < 1'000'000; ++i) header += text(i > 0 ? "," : "", tensor(std::to_string(i), "[0]", 0, 0));
  header += "}";
  write_bytes(path, safetensors_bytes(header));
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const std::clock_t start = std::clock();  // processor time: other work on the machine must not count
  const std::string message = message_of<CheckpointError>([&] { SafetensorsReader reader(path); });
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  getrusage(RUSAGE_SELF, &after);
  CHECK(contains(message, path.string()));
  CHECK(contains(message, "more than"));
  INFO("seconds " << seconds << ", growth in kB " << after.ru_maxrss - before.ru_maxrss);
  CHECK(seconds < 10.0);  // measured 1.0 s, 125 MB; the bounds leave room for sanitizers
  CHECK(after.ru_maxrss - before.ru_maxrss < 600'000);
}

// Random surgery on a valid file: whatever comes out is read completely or refused; nothing else may happen (run this under
// the address sanitizer).
TEST_CASE("mutated files are read or refused, never anything else") {
  TemporaryDirectory directory;
  const Path path = directory / "f";
  const std::string valid = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I64","shape":[],"data_offsets":[24,32]},)"
      R"("c":{"dtype":"F4","shape":[0,8],"data_offsets":[32,32]}})",
      std::string(32, 'd'));
  const std::string alphabet = "\"\\{}[]:,0123456789-+.eE tn\x01\xff";
  const Random random(3, RandomStream::test);
  int accepted = 0, refused = 0;
  for (uint64_t round = 0; round < 5000; ++round) {
    std::string content = valid;
    for (uint64_t edit = 0; edit <= random.below(3, round, 1); ++edit) {
      const uint64_t draw = 100 * (edit + 1);
      const size_t at = random.below(content.size(), round, draw);
      const char byte = random.below(4, round, draw + 1) == 0 ? static_cast<char>(random.below(256, round, draw + 2))
                                                              : alphabet[random.below(alphabet.size(), round, draw + 2)];
      switch (random.below(4, round, draw + 3)) {
        case 0:
          content[at] = byte;
          break;
        case 1:
          content.insert(at, 1, byte);
          break;
        case 2:
          content.erase(at, 1 + random.below(8, round, draw + 4));
          break;
        default:
          content.insert(at, content.substr(random.below(content.size(), round, draw + 5), random.below(60, round, draw + 6)));
          break;
      }
      if (content.empty()) content = "x";
    }
    // A changed length is the first thing to be refused, so half of the rounds repair it and get deeper.
    if (round % 2 == 0 && content.size() > 40) content.replace(0, 8, length_prefix(content.size() - 40));
    write_bytes(path, content);
    try {
      const SafetensorsReader reader(path);
      for (const SafetensorsEntry& entry : reader.entries()) {
        std::string data(static_cast<size_t>(entry.bytes), '\0');
        reader.read(entry.name, data.data(), entry.bytes);
      }
      ++accepted;
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  CHECK(accepted > 50);
  CHECK(refused > 3000);
}

TEST_CASE("directories, pipes and devices are refused without being opened") {
  TemporaryDirectory directory;
  CHECK(contains(message_of<CheckpointError>([&] { SafetensorsReader reader(directory.path()); }), "not a regular file"));
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK(contains(message_of<CheckpointError>([&] { SafetensorsReader reader(directory / "pipe"); }), "not a regular file"));
  std::filesystem::create_symlink("/dev/zero", directory / "link");
  CHECK(contains(message_of<CheckpointError>([&] { SafetensorsReader reader(directory / "link"); }), "not a regular file"));
  CHECK(contains(message_of<StorageError>([&] { SafetensorsReader reader(directory / "absent"); }), "No such file"));
}
