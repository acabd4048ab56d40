// Loss on data against the trainer's evaluation and a naive twin; multiple choice computed by hand on a model of pairs of bytes.
#include <cmath>
#include <set>

#include "data_layer/files.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/core/error.h"
#include "nn/tiny_model.h"
#include "support/catch.h"
#include "support/test_device.h"
#include "train/evaluation.h"
#include "train/multiple_choice.h"
#include "train/text_evaluation.h"

using namespace dmuon;
using namespace dmuon::test;
using Catch::Contains;

namespace {

Json settings() { return with(tiny_settings(), {{"context_length", 12}, {"vocabulary_size", 23}, {"width", 12}}); }

TokenSourceHandle shard(const testing::Directory& directory, size_t tokens) {
  const Random random(3, RandomStream::test);
  std::vector<uint16_t> ids(tokens);
  for (size_t i = 0; i < tokens; ++i) ids[i] = static_cast<uint16_t>(random.below(23, i));
  const std::vector<std::string> files{testing::write(directory / text("ids", tokens, ".bin"), testing::raw(ids))};
  return open_tokens(files, TokenFormat::nanogpt, nullptr, 23);
}

// The next byte depends on the last one only. After ' ' comes x with 0.6 or y with 0.4; after x again x or z, each 0.5; after y
// again y; after q a space.
class Pairs final : public Model {
 public:
  const Inventory& inventory() const override { return inventory_; }
  ModelFacts facts() const override {
    ModelFacts facts;
    facts.context_length = 16;
    facts.vocabulary_size = 256;
    return facts;
  }
  ModelCache make_cache(Backend&, int64_t, int64_t) const override { return {}; }
  Variable forward(ExecutionContext& context, const Tensor& tokens, const Tensor&, ModelCache*, bool) override {
    std::vector<int32_t> ids(static_cast<size_t>(tokens.elements()));
    context.backend.copy_to_host(context.stream, tokens, ids.data());
    std::vector<double> logits(ids.size() * 256, -200.0);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto give = [&](char next, double probability) {
        logits[i * 256 + static_cast<unsigned char>(next)] = 3.0 + std::log(probability);
      };
      if (ids[i] == ' ') give('x', 0.6), give('y', 0.4);
      if (ids[i] == 'x') give('x', 0.5), give('z', 0.5);
      if (ids[i] == 'y') give('y', 1.0);
      if (ids[i] == 'q') give(' ', 1.0);
    }
    const Tensor result =
        context.backend.allocate({tokens.size(0), tokens.size(1), 256}, DType::float32, MemoryCategory::activations, "logits");
    from_doubles(context.backend, logits, result);
    return Variable(result);
  }

 private:
  Inventory inventory_;
};

}  // namespace

TEST_CASE("windows side by side: the trainer's loss, whatever the batch", "[device]") {
  const testing::Directory directory;
  const auto backend = dmuon::testing::make_test_backend();
  Instance instance(*backend, settings(), DType::float32);
  const auto source = shard(directory, 101);
  const auto self = make_self_communicator();
  const double trained = *evaluate(*backend, *self, *instance.model, WindowDataset::sequential(source, 12), 3, 0);
  for (int64_t batch_size : {1, 3, 8, 64}) {
    const auto result = evaluate_text(*backend, *instance.model, source, nullptr, {.batch_size = batch_size});
    CHECK(result.loss == Approx(trained).epsilon(0).margin(1e-6));
    CHECK(result.perplexity() == Approx(std::exp(trained)).epsilon(1e-6));
    CHECK(result.targets == 96);
    CHECK(result.tokens_left_out == 4);
    CHECK(result.target_bytes == 0);
  }
  CHECK(evaluate_text(*backend, *instance.model, source, nullptr, {.maximum_tokens = 40}).targets == 36);
  CHECK_THROWS_AS(evaluate_text(*backend, *instance.model, source, nullptr, {.length = 13}), ConfigError);
}

TEST_CASE("windows with a stride predict every token but the first once, each from its own window", "[device]") {
  const testing::Directory directory;
  const auto backend = dmuon::testing::make_test_backend();
  Instance instance(*backend, settings(), DType::float32);
  for (const auto& [tokens, length, stride] :
       {std::tuple<int64_t, int64_t, int64_t>{40, 12, 5}, {37, 12, 12}, {26, 7, 1}, {9, 12, 4}, {2, 12, 3}}) {
    INFO(tokens << " tokens, length " << length << ", stride " << stride);
    const auto source = shard(directory, static_cast<size_t>(tokens));
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    source->read(0, ids);
    // Windows one by one; a target counts in the first window that has it.
    const int64_t window = std::min(length, tokens - 1);
    std::set<int64_t> seen;
    double sum = 0.0;
    for (int64_t start = 0; seen.size() + 1 < ids.size(); start += std::min(stride, window)) {
      const int64_t first = std::min(start, tokens - 1 - window);
      Batch batch{
          1, window, {ids.begin() + first, ids.begin() + first + window}, {ids.begin() + first + 1, ids.begin() + first + 1 + window}};
      const std::vector<double> losses = run(instance, batch, false, 1.0, false);
      for (int64_t i = 0; i < window; ++i)
        if (seen.insert(first + 1 + i).second) sum += losses[static_cast<size_t>(i)];
    }
    const auto result = evaluate_text(*backend, *instance.model, source, nullptr, {.length = length, .stride = stride, .batch_size = 3});
    CHECK(result.targets == tokens - 1);
    CHECK(result.tokens_left_out == 0);
    CHECK(result.loss == Approx(sum / static_cast<double>(tokens - 1)).epsilon(1e-6));
  }
  CHECK_THROWS_AS(StridedWindows(shard(directory, 9), 4, 5), ConfigError);
  CHECK_THROWS_AS(StridedWindows(shard(directory, 1), 4, 2), DataError);
}

TEST_CASE("bits per byte of text", "[device]") {
  const testing::Directory directory;
  const auto backend = dmuon::testing::make_test_backend();
  Pairs model;
  const auto tokenizer = make_byte_tokenizer();
  const std::vector<std::string> files{testing::write(directory / "a.txt", "q xxz")};
  const auto source = open_tokens(files, TokenFormat::text, tokenizer, 256);
  const auto result = evaluate_text(*backend, model, source, tokenizer.get(), {.length = 4, .stride = 4});
  CHECK(result.targets == 4);
  CHECK(result.target_bytes == 4);
  CHECK(result.loss == Approx(-std::log(1.0 * 0.6 * 0.5 * 0.5) / 4));
  CHECK(result.bits_per_byte() == Approx(-std::log2(0.15) / 4));
}

TEST_CASE("multiple choice by likelihood, per token and per byte", "[device]") {
  const testing::Directory directory;
  const auto backend = dmuon::testing::make_test_backend();
  Pairs model;
  // Losses: x 0.511, yyyy 0.916, xz 1.204 (log 0.6, 0.4, 0.3). The second question's endings get a space before them, so a token more than
  // bytes: x has 0.255 a token and 0.511 a byte, yy 0.305 and 0.458.
  const std::string file = testing::write(directory / "questions.jsonl",
                                          "{\"ctx\": \"q \", \"endings\": [\"x\", \"yyyy\", \"xz\"], \"label\": 1, \"ind\": 4}\n"
                                          "\n"
                                          "{\"ctx\": \"q\", \"endings\": [\"x\", \"yy\"], \"label\": 1}\r\n"
                                          "{\"ctx\": \"q \", \"endings\": [\"xz\", \"x\"], \"label\": \"1\"}");
  const std::vector<Question> questions = read_questions(file);
  REQUIRE(questions.size() == 3);
  CHECK(questions[1].origin == file + ":3");
  const auto tokenizer = make_byte_tokenizer();
  for (int64_t batch_size : {1, 4, 5, 100}) {
    int64_t seen = 0;
    const auto result = evaluate_choices(*backend, model, *tokenizer, questions, batch_size, [&](int64_t done, int64_t all) {
      seen = done;
      CHECK(all == 3);
    });
    CHECK(seen == 3);
    CHECK(result.questions == 3);
    CHECK(result.right == 1);
    CHECK(result.right_per_token == 2);
    CHECK(result.right_per_byte == 3);
  }
  CHECK(read_questions(file, 2).size() == 2);
}

TEST_CASE("a choice keeps the end of a context that is too long") {
  const auto tokenizer = make_byte_tokenizer();
  const Question question{"here", "abcdefgh", {"xy", " z", "long ending"}, 0};
  ChoiceTokens choice = choice_tokens(*tokenizer, question, 0, 16);
  CHECK(tokenizer->decode(choice.ids) == "abcdefgh xy");
  CHECK(choice.ending == 3);
  CHECK(choice.bytes == 2);
  CHECK(tokenizer->decode(choice_tokens(*tokenizer, question, 1, 16).ids) == "abcdefgh z");
  choice = choice_tokens(*tokenizer, question, 0, 5);
  CHECK(tokenizer->decode(choice.ids) == "fgh xy");
  CHECK(choice.ending == 3);
  CHECK_THROWS_WITH(choice_tokens(*tokenizer, question, 2, 5), Contains("here") && Contains("12") && Contains("5"));
  CHECK_THROWS_AS(choice_tokens(*tokenizer, {"here", "", {"x", "y"}, 0}, 0, 5), DataError);
}

TEST_CASE("questions that are malformed are refused by file and line") {
  const testing::Directory directory;
  const std::string good = "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 0}\n";
  const auto refusal = [&](const std::string& line) -> std::string {
    const std::string file = testing::write(directory / "q.jsonl", good + line + "\n" + good);
    try {
      read_questions(file);
      return "none";
    } catch (const DataError& error) {
      CHECK_THAT(error.what(), Contains(file + ":2:"));
      return error.what();
    }
  };
  CHECK(refusal("") == "none");
  CHECK_THAT(refusal("{\"ctx\": \"a\""), Contains("not valid JSON"));
  CHECK_THAT(refusal("[1]"), Contains("object") && Contains("array"));
  CHECK_THAT(refusal(R"({"endings": ["b", "c"], "label": 0})"), Contains("ctx"));
  CHECK_THAT(refusal(R"({"ctx": 3, "endings": ["b", "c"], "label": 0})"), Contains("string"));
  CHECK_THAT(refusal(R"({"ctx": "a", "endings": ["b"], "label": 0})"), Contains("endings"));
  CHECK_THAT(refusal(R"({"ctx": "a", "endings": ["b", ""], "label": 0})"), Contains("empty"));
  CHECK_THAT(refusal(R"({"ctx": "a", "endings": ["b", "c"], "label": 2})"), Contains("label") && Contains("2"));
  CHECK_THAT(refusal(R"({"ctx": "a", "endings": ["b", "c"], "label": "x"})"), Contains("label") && Contains("x"));
  CHECK_THAT(refusal(R"({"ctx": "a", "endings": ["b", "c"]})"), Contains("label"));
  CHECK_THROWS_WITH(read_questions(testing::write(directory / "empty.jsonl", "\n\n")), Contains("no questions"));
  CHECK_THROWS_AS(read_questions(directory / "missing.jsonl"), DataError);
}
