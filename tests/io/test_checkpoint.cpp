// Saving, loading and finding checkpoints when nothing goes wrong, and what a caller does wrong.
#include <numeric>

#include "io/checkpoint_support.h"
#include "support/catch.h"

using namespace dmuon;

TEST_CASE("what two ranks save is read back byte for byte") {
  TemporaryDirectory directory;
  const Path path = save_checkpoint(directory.path(), 1000);
  CHECK(path == directory / "step-00001000");
  CHECK(names_in(path) == std::vector<std::string>{"MANIFEST.json", "configuration.json", "model-00001-of-00002.safetensors",
                                                   "model-00002-of-00002.safetensors", "optimizer-00000.safetensors",
                                                   "optimizer-00001.safetensors", "train_state.json"});
  CHECK(names_in(directory.path()) == std::vector<std::string>{"latest", "step-00001000"});
  CHECK(read_file(directory / "latest") == "step-00001000\n");

  const CheckpointReader reader(path);
  CHECK(reader.step() == 1000);
  CHECK(reader.manifest().at("run_id").as_string() == "run1");
  CHECK(reader.manifest().at("ranks").as_integer() == 2);
  CHECK(reader.manifest().at("tokens").as_integer() == 100'000);
  CHECK(reader.manifest().at("plan").as_string() == "greedy");
  CHECK(reader.configuration().at("model").at("width").as_integer() == 7);
  CHECK(reader.has_text("train_state.json"));
  CHECK_FALSE(reader.has_text("optimizer-00000.safetensors"));
  std::vector<std::string> keys;
  for (const auto& entry : reader.tensors()) keys.push_back(entry.key);
  CHECK(keys == std::vector<std::string>{"bias", "bias#first_moment", "bias#local@1", "block.0.weight", "block.0.weight#momentum", "head"});
  CHECK(reader.at("bias#local@1").rank == 1);
  CHECK(reader.at("head").dtype == DType::bfloat16);
  CHECK(content_is_right(path));

  float part[2];
  reader.read_tensor("block.0.weight", 4 * 50, part, sizeof part);
  CHECK(std::memcmp(part, tensor_content("block.0.weight", 1000, 13 * 7 * 4).data() + 200, sizeof part) == 0);
  CHECK(contains(message_of<CheckpointError>([&] { reader.read_tensor("head", 9, part, 2); }), "leave tensor \"head\""));
  CHECK(contains(message_of<CheckpointError>([&] { reader.read_tensor("head", -1, part, 2); }), "leave tensor \"head\""));
  CHECK(contains(message_of<CheckpointError>([&] { reader.read_tensor("head", part, 8); }), "holds 10 bytes, the destination 8"));
  CHECK(contains(message_of<CheckpointError>([&] { reader.at("heat"); }), "no tensor \"heat\"; the nearest is \"head\""));
  CHECK(contains(message_of<CheckpointError>([&] { reader.text_of("tokenizer.json"); }), "no file \"tokenizer.json\""));
}

TEST_CASE("a large tensor passes in chunks that are whole elements, in ascending order") {
  TemporaryDirectory directory;
  const int64_t elements = checkpoint_chunk_bytes / 2 + 12'345;  // float64: four chunks and a bit
  std::vector<std::pair<int64_t, int64_t>> asked;
  CheckpointTensor tensor{"w", DType::float64, Shape{elements}, [&](int64_t offset, void* destination, int64_t bytes) {
                            asked.emplace_back(offset, bytes);
                            auto* values = static_cast<double*>(destination);
                            for (int64_t i = 0; i < bytes / 8; ++i) values[i] = static_cast<double>(offset / 8 + i);
                          }};
  const Path path = save_checkpoint(directory.path(), 1, "r", {}, {{{tensor}, {}}});
  REQUIRE(asked.size() == 5);
  int64_t next = 0;
  for (const auto& [offset, bytes] : asked) {
    CHECK(offset == next);
    CHECK(bytes <= checkpoint_chunk_bytes);
    CHECK(bytes % 8 == 0);
    next = offset + bytes;
  }
  const CheckpointReader reader(path);
  std::vector<double> values(static_cast<size_t>(elements));
  reader.read_tensor("w", values.data(), elements * 8);
  CHECK(values.back() == static_cast<double>(elements - 1));
  CHECK(std::is_sorted(values.begin(), values.end()));
  CHECK(SafetensorsReader(path / "optimizer-00000.safetensors").entries().empty());  // no tensors: still a file
}

TEST_CASE("100 saves and loads of random shapes") {
  TemporaryDirectory directory;
  const Random random(7, RandomStream::test);
  const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float64, DType::int64, DType::uint8};
  for (int64_t step = 0; step < 100; ++step) {
    std::vector<RankTensors> ranks(1 + random.below(3, static_cast<uint64_t>(step), 1));
    uint64_t draw = 0;
    const auto below = [&](uint64_t bound) { return random.below(bound, static_cast<uint64_t>(step), 100 + draw++); };
    int made = 0;
    for (RankTensors& rank : ranks)
      for (uint64_t i = below(4); i > 0; --i) {
        std::vector<int64_t> sizes(below(4));
        for (auto& size : sizes) size = static_cast<int64_t>(below(9));
        const std::string key = text("p", made++);
        const Shape shape{std::span<const int64_t>(sizes)};
        rank.model.push_back(make_tensor(key, dtypes[below(5)], shape, step));
        rank.optimizer.push_back(make_tensor(state_key(key, "momentum"), DType::float32, shape, step));
      }
    const Path path = save_checkpoint(directory.path(), step, "run", {}, ranks);
    REQUIRE(CheckpointReader(path).tensors().size() == static_cast<size_t>(2 * made));
    REQUIRE(content_is_right(path));
    REQUIRE(find_checkpoint(directory.path(), CheckpointCheck::sizes) == path);
    apply_retention(directory.path(), {.keep_last = 2}, "run");
  }
}

TEST_CASE("keys leave room for a replica and are taken apart strictly") {
  CHECK(state_key("a.b", "momentum") == "a.b#momentum");
  CHECK(state_key("a.b", "momentum", 3) == "a.b#momentum@3");
  const CheckpointKey key = parse_checkpoint_key("a.b#momentum@12");
  CHECK(key.parameter == "a.b");
  CHECK(key.state == "momentum");
  CHECK(key.replica == 12);
  CHECK(parse_checkpoint_key("a.b").state.empty());
  CHECK(parse_checkpoint_key("a.b#m").replica == -1);
  for (const char* bad : {"", "#m", "a#", "a@1", "a#m@", "a#m@-1", "a#m@1x", "a#m#n", "a#m@1@2", "a#m@99999999999"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_checkpoint_key(bad), CheckpointError);
  }
  CHECK_THROWS_AS(state_key("a#b", "m"), ConfigError);
  CHECK_THROWS_AS(state_key("a", ""), ConfigError);
}

TEST_CASE("tensors that are missing, extra or of another shape are named with both shapes") {
  TemporaryDirectory directory;
  const CheckpointReader reader(save_checkpoint(directory.path(), 3));
  std::vector<ExpectedTensor> expected;
  for (const auto& entry : reader.tensors()) expected.push_back({entry.key, entry.dtype, entry.shape});
  CHECK_NOTHROW(reader.check_tensors(expected));
  expected[0].shape = Shape{4};
  expected[1].key = "bias#second_moment";
  expected[3].dtype = DType::float64;
  const std::string message = message_of<CheckpointError>([&] { reader.check_tensors(expected); });
  CHECK(contains(message, "tensor \"bias\" is float32[3], the model needs float32[4]"));
  CHECK(contains(message, "tensor \"bias#second_moment\" float32[3] is missing"));
  CHECK(contains(message, "tensor \"bias#first_moment\" float32[3] is not part of the model"));
  CHECK(contains(message, "tensor \"block.0.weight\" is float32[13, 7], the model needs float64[13, 7]"));
  expected.clear();
  CHECK_NOTHROW(reader.check_tensors(expected, true));
  for (int i = 0; i < 30; ++i) expected.push_back({text("x", i), DType::float32, Shape{1}});
  CHECK(contains(message_of<CheckpointError>([&] { reader.check_tensors(expected, true); }), "and 20 more"));
}

TEST_CASE("only complete step directories are listed, in the order of their steps") {
  TemporaryDirectory directory;
  CHECK(list_checkpoints(directory / "absent").empty());
  CHECK_FALSE(find_checkpoint(directory / "absent").has_value());
  CHECK_FALSE(find_checkpoint(directory.path()).has_value());
  for (const char* junk : {"step_00099999", "step-99999", "step-00000500.tmp-run", ".trash-step-00000400-run", "step-0000x001", "other"})
    std::filesystem::create_directories(directory / junk);
  write_bytes(directory / "step-00000777", "a file");
  write_bytes(directory / "latest", "step-00099999\n");  // a hint, wrong
  CHECK_FALSE(find_checkpoint(directory.path()).has_value());
  for (const int64_t step : {30, 100'000'000, 4}) save_checkpoint(directory.path(), step);
  std::filesystem::create_directories(directory / "step-00099999");
  std::vector<int64_t> steps;
  for (const auto& found : list_checkpoints(directory.path())) steps.push_back(found.step);
  CHECK(steps == std::vector<int64_t>{4, 30, 100'000'000});
  const auto all = scan_checkpoints(directory.path());
  REQUIRE(all.size() == 4);
  CHECK(contains(all[2].problem, "no MANIFEST.json"));
  CHECK(find_checkpoint(directory.path())->filename() == "step-100000000");
}

TEST_CASE("a user's path is a step directory, a checkpoint directory or a run directory") {
  TemporaryDirectory directory;
  save_checkpoint(directory / "run/checkpoints", 5);
  const Path newest = save_checkpoint(directory / "run/checkpoints", 6);
  CHECK(resolve_checkpoint(newest) == newest);
  CHECK(resolve_checkpoint(text(newest.string(), "/")) == newest);
  CHECK(resolve_checkpoint(directory / "run/checkpoints") == newest);
  CHECK(resolve_checkpoint(directory / "run") == newest);
  std::filesystem::rename(newest, directory / "best");
  CHECK(CheckpointReader(resolve_checkpoint(directory / "best")).step() == 6);
  CHECK(contains(message_of<CheckpointError>([&] { resolve_checkpoint(directory / "absent"); }), "does not exist"));
  std::filesystem::create_directories(directory / "empty");
  CHECK(contains(message_of<CheckpointError>([&] { resolve_checkpoint(directory / "empty"); }), "expected a directory such as"));
}

TEST_CASE("misuse of the writer is refused by name") {
  TemporaryDirectory directory;
  CHECK_THROWS_AS(CheckpointWriter({directory.path(), 1, "../x", 0}), ConfigError);
  CHECK_THROWS_AS(CheckpointWriter({directory.path(), 1, "", 0}), ConfigError);
  CHECK_THROWS_AS(CheckpointWriter({directory.path(), -1, "run", 0}), ConfigError);
  CheckpointWriter writer({directory.path(), 1, "run", 0});
  writer.begin();
  for (const char* name : {"../x", "a/b", "", ".hidden", "MANIFEST.json", "a\\b"}) {
    INFO(name);
    CHECK_THROWS_AS(writer.write_text(name, "x"), ConfigError);
  }
  CHECK_THROWS_AS(writer.write_tensors("m.safetensors", {make_tensor("a@b", DType::float32, Shape{1}, 0)}), CheckpointError);
  const Json a = writer.write_tensors("a.safetensors", {make_tensor("w", DType::float32, Shape{1}, 0)});
  const Json b = writer.write_tensors("b.safetensors", {make_tensor("w", DType::float32, Shape{1}, 0)});
  CHECK(contains(message_of<CheckpointError>([&] { writer.publish({a, b}, {}); }), "two ranks wrote the tensor \"w\""));
  CHECK(contains(message_of<CheckpointError>([&] { writer.publish({a, a}, {}); }), "\"a.safetensors\""));
  CHECK(contains(message_of<ConfigError>([&] { writer.publish({a}, {.extra = Json::Object{{"step", 3}}}); }), "\"step\""));
  writer.abandon();
  CHECK(names_in(directory.path()).empty());
  CHECK(contains(message_of<ConfigError>([] { CrashPoints("after_manifesto", 0); }), "did you mean \"after_manifest\""));
  CHECK_THROWS_AS(CrashPoints("after_begin:rank=x", 0), ConfigError);
  CHECK_THROWS_AS(CrashPoints("after_begin:host=1", 0), ConfigError);
}
