// Hugging Face directories that are damaged, foreign or hostile; round trips; random access.
#include <algorithm>
#include <cstring>
#include <set>

#include "huggingface/huggingface_support.h"
#include "io/io_support.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

constexpr const char* fixtures[] = {"gpt2", "qwen2", "qwen3"};

struct Opened {
  HuggingFaceModel model;
  HuggingFaceLayout layout;
  std::unique_ptr<Model> made;
  HuggingFaceReader reader;

  explicit Opened(const Path& directory, std::initializer_list<std::pair<const char*, Json>> changes = {})
      : model(read_huggingface_config(directory, models())),
        layout(model.family.huggingface.layout(with(model.settings, changes))),
        made(model.family.make(with(model.settings, changes))),
        reader(directory, layout, made->inventory()) {}

  std::vector<float> values(const ParameterDeclaration& parameter) const {
    std::vector<float> out(static_cast<size_t>(parameter.shape.elements()));
    reader.read(parameter.name, 0, parameter.shape.elements(), out.data());
    return out;
  }
};

template <class E>
std::string refusal(const Path& directory) {
  return message_of<E>([&] { Opened(directory).reader.check_tied_copy(); });
}

// The tensors of a single-file directory, to be written again with changes.
struct Tensors {
  std::vector<SafetensorsDeclaration> declarations;
  std::map<std::string, std::string> data;

  explicit Tensors(const Path& file) {
    const SafetensorsReader reader(file);
    for (const SafetensorsEntry& entry : reader.entries()) {
      std::string bytes(static_cast<size_t>(entry.bytes), '\0');
      reader.read(entry.name, bytes.data(), entry.bytes);
      add(entry.name, *entry.element_type, entry.shape, bytes);
    }
  }
  void add(const std::string& name, DType dtype, const Shape& shape, const std::string& bytes) {
    declarations.push_back({name, dtype, shape});
    data[name] = bytes;
  }
  void remove(const std::string& name) {
    std::erase_if(declarations, [&](const auto& each) { return each.name == name; });
  }
  SafetensorsDeclaration& at(const std::string& name) {
    return *std::find_if(declarations.begin(), declarations.end(), [&](const auto& each) { return each.name == name; });
  }
  void write(const Path& file) const {
    SafetensorsWriter writer(file, declarations);
    for (const SafetensorsEntry& entry : writer.entries()) writer.write(data.at(entry.name).data(), entry.bytes);
    writer.close();
  }
};

void edit(const Path& file, const std::function<void(Json&)>& change) {
  Json json = parse_json(read_file(file), file.string());
  change(json);
  write_bytes(file, json.dump());
}

}  // namespace

TEST_CASE("any range of a parameter is what the whole parameter holds there") {
  for (const char* name : fixtures) {
    const Opened opened(huggingface_fixture(name));
    for (const ParameterDeclaration& parameter : opened.made->inventory().parameters()) {
      INFO(name << ", " << parameter.name);
      const std::vector<float> whole = opened.values(parameter);
      const int64_t elements = parameter.shape.elements();
      for (const auto& [first, count] :
           {std::pair(int64_t{0}, elements), {elements / 3, elements / 2}, {elements - 1, int64_t{1}}, {elements, int64_t{0}}}) {
        std::vector<float> part(static_cast<size_t>(count) + 1, 77.0F);
        opened.reader.read(parameter.name, first, count, part.data());
        CHECK(std::equal(part.begin(), part.end() - 1, whole.begin() + first));
        CHECK(part.back() == 77.0F);
      }
      float out = 0;
      CHECK_THROWS_AS(opened.reader.read(parameter.name, elements, 1, &out), ShapeError);
      CHECK_THROWS_AS(opened.reader.read(parameter.name, -1, 1, &out), ShapeError);
    }
  }
}

TEST_CASE("export and import give the same bits, padded vocabulary or not, in any number of shards") {
  for (const char* name : fixtures)
    for (const int64_t shard_bytes : {int64_t{1} << 40, int64_t{20000}, int64_t{1}}) {
      INFO(name << ", " << shard_bytes);
      TemporaryDirectory directory;
      const Opened original(huggingface_fixture(name), {{"vocabulary_multiple", 100}});
      CHECK(original.made->inventory().find("embedding.token.weight")->shape[0] == 100);
      HuggingFaceExport request;
      request.directory = directory / "out";
      request.config = original.model.family.huggingface.config(original.model.settings);
      request.layout = original.layout;
      request.shard_bytes = shard_bytes;
      request.read = [&](const std::string& parameter, int64_t first, int64_t count, float* out) {
        original.reader.read(parameter, first, count, out);
      };
      write_huggingface(request);
      CHECK_THROWS_AS(write_huggingface(request), ConfigError);  // never over an existing one
      CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
      const Opened again(directory / "out", {{"vocabulary_multiple", 100}});
      CHECK(again.model.settings == original.model.settings);
      for (const ParameterDeclaration& parameter : original.made->inventory().parameters())
        CHECK(again.values(parameter) == original.values(parameter));
      // The files have transformers' names and shapes, all of them and no other.
      const HuggingFaceFiles theirs(huggingface_fixture(name)), ours(directory / "out");
      CHECK(std::set<std::string>(theirs.names().begin(), theirs.names().end()) ==
            std::set<std::string>(ours.names().begin(), ours.names().end()));
      for (const std::string& tensor : theirs.names()) CHECK(theirs.find(tensor)->entry->shape == ours.find(tensor)->entry->shape);
      if (shard_bytes == 1) CHECK(std::filesystem::exists(directory / text("out/model-00002-of-000", ours.names().size(), ".safetensors")));
    }
}

TEST_CASE("names without the prefix, constant buffers and an equal tied head are accepted") {
  TemporaryDirectory directory;
  const Path copy = copy_of_fixture("gpt2", directory / "gpt2"), file = copy / "model.safetensors";
  Tensors tensors(file);
  for (SafetensorsDeclaration& declaration : tensors.declarations) {
    const std::string plain = declaration.name.substr(std::string("transformer.").size());
    tensors.data[plain] = tensors.data[declaration.name];
    declaration.name = plain;
  }
  tensors.add("h.1.attn.bias", DType::uint8, Shape{1, 1, 32, 32}, std::string(1024, '\1'));
  tensors.add("h.0.attn.masked_bias", DType::float32, Shape{}, std::string(4, '\0'));
  tensors.add("lm_head.weight", DType::float32, Shape{96, 24}, tensors.data["wte.weight"]);
  tensors.write(file);
  const Opened plain(copy), original(huggingface_fixture("gpt2"));
  plain.reader.check_tied_copy();
  CHECK(contains(join(plain.reader.notes(), "\n"), "tied: lm_head.weight <- wte.weight; the files hold it as well"));
  for (const ParameterDeclaration& parameter : original.made->inventory().parameters())
    CHECK(plain.values(parameter) == original.values(parameter));

  tensors.data["lm_head.weight"][5] ^= 1;
  tensors.write(file);
  CHECK(contains(refusal<CheckpointError>(copy), "holds other values"));
  tensors.remove("lm_head.weight");
  tensors.add("h.2.attn.bias", DType::uint8, Shape{1}, "x");  // no such layer
  tensors.write(file);
  CHECK(contains(refusal<CheckpointError>(copy), "does not have: h.2.attn.bias"));
}

TEST_CASE("16-bit files are widened exactly, and a bfloat16 export gives the same bits") {
  for (const char* name : {"qwen2_float16", "qwen2_bfloat16"}) {
    INFO(name);
    const Opened opened(huggingface_fixture(name));
    const SafetensorsReader expected(huggingface_fixture(name) / "expected.safetensors");
    const auto bits = [](const std::vector<float>& values) {  // so that -0 is not 0
      std::vector<uint32_t> out(values.size());
      std::memcpy(out.data(), values.data(), values.size() * sizeof(float));
      return out;
    };
    CHECK(expected.entries().size() == opened.layout.tensors.size());
    for (const HuggingFaceTensor& tensor : opened.layout.tensors) {
      INFO(tensor.name);
      REQUIRE(tensor.parts.size() == 1);
      const ParameterDeclaration& parameter = *opened.made->inventory().find(tensor.parts[0].parameter);
      const std::vector<float> wanted = read_floats(expected, tensor.name);
      CHECK(bits(opened.values(parameter)) == bits(wanted));
      // From the middle, too: narrow values lie at the end of the memory that their wide ones fill.
      std::vector<float> part(wanted.size() / 2);
      opened.reader.read(parameter.name, std::ssize(part) / 2, std::ssize(part), part.data());
      CHECK(bits(part) == bits({wanted.begin() + std::ssize(part) / 2, wanted.begin() + std::ssize(part) / 2 + std::ssize(part)}));
    }
    if (std::string_view(name) == "qwen2_float16") continue;
    TemporaryDirectory directory;
    HuggingFaceExport request;
    request.directory = directory / "out";
    request.config = opened.model.family.huggingface.config(opened.model.settings);
    request.layout = opened.layout;
    request.dtype = DType::bfloat16;
    request.read = [&](const std::string& parameter, int64_t first, int64_t count, float* out) {
      opened.reader.read(parameter, first, count, out);
    };
    write_huggingface(request);
    const SafetensorsReader theirs(huggingface_fixture(name) / "model.safetensors"), ours(directory / "out" / "model.safetensors");
    for (const SafetensorsEntry& entry : theirs.entries()) {
      std::string a(static_cast<size_t>(entry.bytes), '\0'), b = a;
      theirs.read(entry.name, a.data(), entry.bytes);
      ours.read(entry.name, b.data(), entry.bytes);
      CHECK((a == b));
    }
  }
}

TEST_CASE("missing, unexpected and misshaped tensors are named") {
  TemporaryDirectory directory;
  const Path copy = copy_of_fixture("qwen3", directory / "qwen3"), file = copy / "model.safetensors";
  const auto damaged = [&](const std::function<void(Tensors&)>& change) {
    Tensors tensors(huggingface_fixture("qwen3") / "model.safetensors");
    change(tensors);
    tensors.write(file);
    return refusal<CheckpointError>(copy);
  };
  CHECK(contains(damaged([](Tensors& t) { t.remove("model.layers.1.self_attn.k_norm.weight"); }),
                 "lacks 1 tensor of the model: model.layers.1.self_attn.k_norm.weight"));
  CHECK(contains(damaged([](Tensors& t) { t.remove("lm_head.weight"); }),
                 "lacks 1 tensor of the model: lm_head.weight"));  // untied and absent
  CHECK(
      contains(damaged([](Tensors& t) { t.add("model.layers.0.self_attn.q_proj.bias", DType::float32, Shape{64}, std::string(256, 'x')); }),
               "does not have: model.layers.0.self_attn.q_proj.bias"));
  CHECK(contains(damaged([](Tensors& t) { t.at("model.norm.weight").shape = Shape{8, 5}; }), "\"model.norm.weight\" is BF16[8, 5]"));
  CHECK(contains(damaged([](Tensors& t) { t.at("model.norm.weight").dtype = DType::int16; }), "\"model.norm.weight\" is I16"));
}

TEST_CASE("an index that is foreign or hostile is refused") {
  TemporaryDirectory directory;
  const Path copy = copy_of_fixture("qwen2", directory / "qwen2"), index = copy / "model.safetensors.index.json";
  const std::string good = read_file(index);
  const auto mapped = [&](const std::string& shard) {
    write_bytes(index, good);
    edit(index, [&](Json& json) { json.find("weight_map")->set("model.norm.weight", shard); });
    return refusal<CheckpointError>(copy);
  };
  for (const std::string& name :
       {std::string("../model.safetensors"), std::string("/etc/model.safetensors"), std::string("a\\b.safetensors"),
        std::string("a\0b.safetensors", 15), std::string("..safetensors"), std::string(), std::string("model.bin")}) {
    INFO(name);
    CHECK(contains(mapped(name), "tensor \"model.norm.weight\": the shard's name"));
  }
  CHECK(contains(mapped("model-00005-of-00004.safetensors"), "shard model-00005-of-00004.safetensors is missing"));
  CHECK(contains(mapped("model-00001-of-00004.safetensors"), "does not hold tensor \"model.norm.weight\""));
  for (const char* text : {"[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})", R"({"weight_map": {"a": 1}})",
                           R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})", "{\"weight_map\"", "\xff"}) {
    write_bytes(index, text);
    CHECK(contains(refusal<CheckpointError>(copy), "model.safetensors.index.json"));
  }
  write_bytes(index, good);
  edit(index, [&](Json& json) {
    std::erase_if(json.find("weight_map")->as_object(), [](const auto& member) { return member.first == "model.norm.weight"; });
  });
  CHECK(contains(refusal<CheckpointError>(copy), "holds tensor \"model.norm.weight\", which the index does not know"));

  write_bytes(index, good);
  edit(index, [](Json& json) { json.find("metadata")->set("total_size", 5); });
  write_bytes(copy / "model.safetensors", "not even a file of tensors");  // a stray one is not opened
  const std::string notes = join(Opened(copy).reader.notes(), "\n");
  CHECK(contains(notes, "total_size is 5, the tensors hold 74880 bytes"));
  CHECK(contains(notes, "is used; model.safetensors beside it is not"));

  const Path shard = copy / "model-00002-of-00004.safetensors";
  const std::string whole = read_file(shard);
  write_bytes(shard, whole.substr(0, whole.size() - 4));
  CHECK(contains(refusal<CheckpointError>(copy), "model-00002-of-00004.safetensors"));
  std::filesystem::remove(shard);
  CHECK(contains(refusal<CheckpointError>(copy), "shard model-00002-of-00004.safetensors is missing"));
}

TEST_CASE("config.json: what is not implemented is refused by name") {
  TemporaryDirectory directory;
  struct Case {
    const char* fixture;
    const char* key;
    Json value;
  };
  const auto json = [](const char* source) { return parse_json(source, "case"); };
  const std::vector<Case> cases = {
      {"qwen2", "model_type", "llama"},
      {"qwen2", "model_type", 3},
      {"qwen2", "architectures", json(R"(["Qwen2ForSequenceClassification"])")},
      {"qwen2", "quantization_config", json(R"({"bits": 4})")},
      {"qwen2", "auto_map", json(R"({"AutoModel": "x.py"})")},
      {"qwen2", "hidden_act", "gelu"},
      {"qwen2", "use_sliding_window", true},
      {"qwen2", "layer_types", json(R"(["full_attention", "sliding_attention"])")},
      {"qwen2", "layer_types", json(R"(["full_attention"])")},
      {"qwen2", "rope_scaling", json(R"({"type": "yarn", "factor": 4.0})")},
      {"qwen2", "rope_parameters", json(R"({"rope_type": "linear", "factor": 2.0})")},
      {"qwen2", "rope_parameters", json(R"({"full_attention": {"rope_type": "default"}})")},
      {"qwen2", "rope_parameters", json(R"({"partial_rotary_factor": 0.5})")},
      {"qwen2", "num_key_value_heads", 3},
      {"qwen2", "num_hidden_layers", 5000},
      {"qwen2", "num_hidden_layers", 0},
      {"qwen2", "hidden_size", -32},
      {"qwen2", "hidden_size", 32.5},
      {"qwen2", "vocab_size", int64_t{1} << 31},
      {"qwen2", "intermediate_size", json("18446744073709551615")},
      {"qwen2", "rms_norm_eps", "small"},
      {"qwen2", "tie_word_embeddings", 1},
      {"qwen2", "attention_dropout", 0.1},
      {"qwen3", "attention_bias", true},
      {"qwen3", "head_dim", 15},
      {"gpt2", "activation_function", "swish"},
      {"gpt2", "scale_attn_weights", false},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true},
      {"gpt2", "reorder_and_upcast_attn", true},
      {"gpt2", "add_cross_attention", true},
      {"gpt2", "n_head", 5},
  };
  for (const Case& each : cases) {
    INFO(each.fixture << ", " << each.key << " = " << each.value.dump());
    Json config = parse_json(read_file(huggingface_fixture(each.fixture) / "config.json"), "config.json");
    config.set(each.key, each.value);
    const std::string message = message_of<ConfigError>([&] { parse_huggingface_config(config.dump(), "dir/config.json", models()); });
    CHECK(contains(message, text("dir/config.json: ", each.key, " = ")));
  }
  for (const char* broken : {"[]", "null", "{}", "{", R"({"model_type": "gpt2"})"})
    CHECK_THROWS_AS(parse_huggingface_config(broken, "config.json", models()), ConfigError);
  CHECK_THROWS_AS(read_huggingface_config(directory.path(), models()), StorageError);
}

TEST_CASE("config.json in transformers' older spelling means the same") {
  Json config = parse_json(read_file(huggingface_fixture("qwen2") / "config.json"), "config.json");
  const Json settings = parse_huggingface_config(config.dump(), "config.json", models()).settings;
  CHECK(settings.at("rotary_base").as_number() == 1e6);
  for (const char* key : {"rope_parameters", "layer_types", "dtype"}) config.set(key, Json());
  config.set("rope_theta", 1000000);
  config.set("rope_scaling", Json());
  config.set("torch_dtype", "float32");
  config.set("something_new", 3);
  const HuggingFaceModel old = parse_huggingface_config(config.dump(), "config.json", models());
  CHECK(old.settings == settings);
  CHECK(join(old.notes, "\n") == "config.json: keys that dmuon does not know are ignored: something_new");
}
