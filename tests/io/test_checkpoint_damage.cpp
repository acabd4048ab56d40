// Checkpoints that were changed, cut or forged after they were written.
#include "dmuon/core/hash.h"
#include "io/checkpoint_manifest.h"
#include "io/checkpoint_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

std::string refusal(const Path& path, CheckpointCheck check = CheckpointCheck::hashes) {
  return message_of<CheckpointError>([&] { CheckpointReader reader(path, check); });
}

// Replaces `from` by `to` in the manifest and gives it a valid hash again: a forgery, not damage.
void forge_manifest(const Path& path, const std::string& from, const std::string& to) {
  Json manifest = read_manifest(path / manifest_name);
  std::erase_if(manifest.as_object(), [](const Json::Member& member) { return member.first == "manifest_hash"; });
  std::string content = manifest.dump();
  const size_t at = content.find(from);
  REQUIRE(at != std::string::npos);
  write_bytes(path / manifest_name, write_manifest(parse_json(content.replace(at, from.size(), to), "forged")));
}

}  // namespace

TEST_CASE("one flipped byte anywhere is reported with its file, and with its tensor where there is one") {
  TemporaryDirectory directory;
  const Path path = save_checkpoint(directory.path(), 7);
  for (const std::string& name : names_in(path)) {
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path / name));
    const int64_t stride = name == "MANIFEST.json" ? 7 : 1;  // every byte; the long manifest at every seventh
    for (int64_t offset = 0; offset < size; offset += stride) {
      flip_byte(path / name, offset, 0x10);
      const std::string message = refusal(path);
      INFO(name << " byte " << offset << ": " << message);
      REQUIRE(contains(message, (path / name).string()));
      flip_byte(path / name, offset, 0x10);
    }
  }
  CHECK(content_is_right(path));

  const SafetensorsReader model(path / "model-00001-of-00002.safetensors");
  for (const SafetensorsEntry& entry : model.entries())
    for (const int64_t offset : {entry.offset, entry.offset + entry.bytes - 1}) {
      flip_byte(model.path(), offset);
      const std::string message = refusal(path);
      INFO(message);
      CHECK(contains(message, model.path().string()));
      CHECK(contains(message, text("damaged tensors: \"", entry.name, "\"")));
      CHECK(refusal(path, CheckpointCheck::sizes).empty());  // only the hashes tell
      flip_byte(model.path(), offset);
    }
  flip_byte(model.path(), 8 + 4);  // inside "__metadata__": still a valid header for sizes or an unknown tensor, never accepted
  CHECK(contains(refusal(path), model.path().string()));
}

TEST_CASE("ranks that share the hashing find damage in their own part") {
  TemporaryDirectory directory;
  const Path path = save_checkpoint(directory.path(), 7);
  const CheckpointReader reader(path, CheckpointCheck::sizes);
  const Path damaged = path / reader.files()[2].name;
  flip_byte(damaged, static_cast<int64_t>(std::filesystem::file_size(damaged)) - 1);
  CHECK_NOTHROW(reader.verify_hashes(0, 3));
  CHECK_NOTHROW(reader.verify_hashes(1, 3));
  CHECK(contains(message_of<CheckpointError>([&] { reader.verify_hashes(2, 3); }), damaged.string()));
}

TEST_CASE("a missing, truncated, lengthened or replaced file is named without hashing anything") {
  TemporaryDirectory directory;
  for (const std::string name : {"model-00002-of-00002.safetensors", "optimizer-00000.safetensors", "train_state.json", "MANIFEST.json"}) {
    const Path path = save_checkpoint(directory.path(), 1);
    const Path file = path / name;
    INFO(name);
    const std::string content = read_file(file);
    write_bytes(file, content.substr(0, content.size() - 1));
    CHECK(contains(refusal(path, CheckpointCheck::sizes), file.string()));
    CHECK(contains(refusal(path, CheckpointCheck::sizes), "truncated"));
    write_bytes(file, content + "x");
    CHECK(contains(refusal(path, CheckpointCheck::sizes), file.string()));
    std::filesystem::remove(file);
    CHECK(contains(refusal(path, CheckpointCheck::sizes), name));
    write_bytes(directory / "elsewhere", content);  // the right content, but a link may point anywhere
    std::filesystem::create_symlink(directory / "elsewhere", file);
    CHECK(contains(refusal(path, CheckpointCheck::sizes), text(file.string(), " is not a regular file")));
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
    CHECK(contains(refusal(path, CheckpointCheck::sizes), "not a regular file"));
    std::filesystem::remove_all(path);
  }
  CHECK(contains(refusal(directory / "absent"), "not a directory"));
}

TEST_CASE("a tensor file of another checkpoint does not pass") {
  TemporaryDirectory directory;
  const Path a = save_checkpoint(directory.path(), 1), b = save_checkpoint(directory.path(), 2);
  const std::string name = "optimizer-00001.safetensors";
  std::filesystem::copy_file(a / name, b / name, std::filesystem::copy_options::overwrite_existing);
  CHECK(contains(refusal(b), text((b / name).string(), " is damaged")));  // equal size and header, other content
  std::filesystem::copy_file(a / "model-00001-of-00002.safetensors", b / "model-00002-of-00002.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  CHECK(contains(refusal(b), "model-00002-of-00002.safetensors"));
}

TEST_CASE("forged manifests are refused by name") {
  struct Forgery {
    std::string from, to, expected;
  };
  const std::vector<Forgery> forgeries = {
      {"\"format_version\":1", "\"format_version\":2", "checkpoint format version 2; this build reads versions 1 to 1"},
      {"\"format_version\":1", "\"format_version\":0", "checkpoint format version 0"},
      {"\"format_version\":1", "\"format_version\":\"1\"", "expected integer, found string"},
      {"\"dmuon-checkpoint\"", "\"other-checkpoint\"", "not the manifest of a dmuon checkpoint"},
      {"\"file\":\"train_state.json\"", "\"file\":\"../train_state.json\"",
       "\"../train_state.json\" is not the name of a file in this directory"},
      {"\"file\":\"train_state.json\"", "\"file\":\"/etc/passwd\"", "\"/etc/passwd\" is not the name"},
      {"\"file\":\"train_state.json\"", "\"file\":\"..\\\\train_state.json\"", "is not the name of a file"},
      {"\"file\":\"train_state.json\"", "\"file\":\"train\\u0000state\"", "is not the name of a file"},
      {"\"file\":\"train_state.json\"", "\"file\":\"..\"", "is not the name of a file"},
      {"\"file\":\"train_state.json\"", "\"file\":\"\"", "is not the name of a file"},
      {"\"file\":\"train_state.json\"", "\"file\":\"configuration.json\"", "lists the file \"configuration.json\" twice"},
      {"\"file\":\"train_state.json\"", "\"file\":\"absent.json\"", "absent.json is missing"},
      {"\"key\":\"bias\"", "\"key\":\"head\"", "lists the tensor \"head\" twice"},
      {"\"key\":\"bias\"", "\"key\":\"base\"", "holds the tensor \"bias\", which the manifest does not list there"},
      {"\"shape\":[13,7]", "\"shape\":[7,13]", "is F32[13, 7], the manifest says float32[7, 13]"},
      {"\"shape\":[13,7]", "\"shape\":[-13,7]", "negative size"},
      {"\"dtype\":\"bfloat16\"", "\"dtype\":\"float16\"", "is BF16[5], the manifest says float16[5]"},
      {"\"dtype\":\"bfloat16\"", "\"dtype\":\"float12\"", "unknown dtype \"float12\""},
      {"\"bytes\":", "\"bytes\":1", "the manifest says 1"},
      {"\"hash\":\"", "\"hash\":\"0", "is not a hash"},
      {"\"step\":1", "\"steps\":1", "missing key \"step\""},
  };
  TemporaryDirectory directory;
  for (const Forgery& forgery : forgeries) {
    const Path path = save_checkpoint(directory.path(), 1);
    forge_manifest(path, forgery.from, forgery.to);
    const std::string message = refusal(path);
    INFO(forgery.to << "\n" << message);
    CHECK(contains(message, path.string()));
    CHECK(contains(message, forgery.expected));
    std::filesystem::remove_all(path);
  }
  const Path path = save_checkpoint(directory.path(), 1);
  forge_manifest(path, "\"run1\"", "\"run2\"");  // a change that breaks no rule: shows that forging itself works
  CHECK(refusal(path).empty());
  write_bytes(path / "MANIFEST.json", "{}");
  CHECK(contains(refusal(path), "not the manifest"));
  write_bytes(path / "MANIFEST.json", "");
  CHECK(contains(refusal(path), "MANIFEST.json"));
}

TEST_CASE("a damaged newest checkpoint is skipped for an older one; none left is an error") {
  TemporaryDirectory directory;
  const Path old = save_checkpoint(directory.path(), 10), newest = save_checkpoint(directory.path(), 20);
  const Path file = newest / "optimizer-00000.safetensors";
  flip_byte(file, static_cast<int64_t>(std::filesystem::file_size(file)) - 1);
  CHECK(find_checkpoint(directory.path(), CheckpointCheck::sizes) == newest);
  CHECK(find_checkpoint(directory.path()) == old);
  CHECK(contains(refusal(resolve_checkpoint(newest)), "block.0.weight#momentum"));  // asked for by name: no silent fallback

  // The run goes on from step 10 and reaches 20 again: the damaged one is moved aside, not overwritten and not in the way.
  CHECK(save_checkpoint(directory.path(), 20, "run2") == newest);
  CHECK(content_is_right(newest));
  CHECK(std::filesystem::exists(directory / "damaged-step-00000020-run2"));

  for (const Path& path : {old, newest}) std::filesystem::remove(path / "train_state.json");
  const std::string message = message_of<CheckpointError>([&] { find_checkpoint(directory.path()); });
  CHECK(contains(message, "no checkpoint that can be used"));
  CHECK(contains(message, (old / "train_state.json").string()));
  CHECK(contains(message, (newest / "train_state.json").string()));
}

TEST_CASE("a directory renamed to another step is not taken for that step") {
  TemporaryDirectory directory;
  std::filesystem::rename(save_checkpoint(directory.path(), 10), directory / "step-00000099");
  save_checkpoint(directory.path(), 20);
  CHECK(find_checkpoint(directory.path())->filename() == "step-00000020");
  CHECK(contains(scan_checkpoints(directory.path())[1].problem, "its manifest is of step 10"));
}
