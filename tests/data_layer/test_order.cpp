// Order of the data: permutation, epochs, ranks, resume.
#include <algorithm>
#include <set>

#include "data_layer/files.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/data/dataset.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::testing;

TEST_CASE("k windows of T tokens need exactly kT + 1 tokens") {
  for (int64_t length : {1, 2, 7, 64})
    for (int64_t k : {1, 2, 10}) {
      CHECK(count_windows(k * length, length) == k - 1);
      CHECK(count_windows(k * length + 1, length) == k);
      CHECK(count_windows(k * length + length, length) == k);
      CHECK(count_windows(k * length + 1 + 3, length, 3) == k);
      CHECK(count_windows(k * length + 3, length, 3) == k - 1);
    }
  CHECK(count_windows(0, 4) == 0);
  CHECK(count_windows(1, 4) == 0);
  CHECK(count_windows(4, 4, 100) == 0);
}

TEST_CASE("a permutation visits every index once") {
  const Random random(7, RandomStream::test);
  std::vector<int64_t> counts = {1, 2, 3, 4, 5, 9, 16, 17, 255, 256, 257, 4096, 10007};
  for (uint64_t i = 0; i < 20; ++i) counts.push_back(static_cast<int64_t>(1 + random.below(3000, i)));
  for (const int64_t count : counts) {
    const Permutation permutation(count, 11, static_cast<uint64_t>(count));
    std::vector<bool> seen(static_cast<size_t>(count), false);
    bool valid = true;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t image = permutation(i);
      valid = valid && image >= 0 && image < count && !seen[static_cast<size_t>(image)];
      if (!valid) break;
      seen[static_cast<size_t>(image)] = true;
    }
    INFO("count " << count);
    CHECK(valid);
  }
  const Permutation huge((int64_t{1} << 40) + 12345, 1, 0);
  std::set<int64_t> images;
  for (int64_t i = 0; i < 1000; ++i) images.insert(huge(i));
  CHECK(images.size() == 1000);
  CHECK(*images.begin() >= 0);
  CHECK(*images.rbegin() < (int64_t{1} << 40) + 12345);
  CHECK(*images.rbegin() > int64_t{1} << 38);
  CHECK_THROWS_AS(Permutation(0, 1, 1), ShapeError);
}

TEST_CASE("a permutation leaves few patterns") {
  // Where index i lands must look uniform: over many epochs each place is taken about equally often (chi-squared).
  const int64_t count = 10;
  const int epochs = 4000;
  for (const int64_t index : {0, 1, 9}) {
    std::vector<int> hits(count, 0);
    for (int epoch = 0; epoch < epochs; ++epoch) ++hits[static_cast<size_t>(Permutation(count, 3, static_cast<uint64_t>(epoch))(index))];
    double chi = 0;
    for (const int hit : hits) chi += (hit - 400.0) * (hit - 400.0) / 400.0;
    CHECK(chi < 33.7);  // 9 degrees of freedom, p = 1e-4
  }
  int neighbours = 0;
  const Permutation permutation(5000, 3, 1);
  for (int64_t i = 0; i + 1 < 5000; ++i) neighbours += permutation(i + 1) == permutation(i) + 1;
  CHECK(neighbours < 10);
}

TEST_CASE("every epoch visits each window of its grid once, at a new offset, in a new order") {
  const int64_t length = 8, tokens = 10 * length + 1;
  const SampleOrder order(tokens, length, 5);
  CHECK(order.windows_per_epoch() == 9);
  std::set<int64_t> offsets;
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    std::vector<int64_t> windows;
    const int64_t offset = order.offset(epoch);
    offsets.insert(offset);
    for (int64_t i = 0; i < 9; ++i) {
      const Sample sample = order.sample(epoch * 9 + i);
      CHECK(sample.epoch == epoch);
      CHECK((sample.first_token - offset) % length == 0);
      CHECK(sample.first_token >= 0);
      CHECK(sample.first_token + length < tokens);
      windows.push_back((sample.first_token - offset) / length);
    }
    epochs.push_back(windows);
    std::sort(windows.begin(), windows.end());
    CHECK(windows == counting<int64_t>(9));
  }
  CHECK(offsets.size() > 5);
  CHECK(*offsets.rbegin() < length);
  std::sort(epochs.begin(), epochs.end());
  CHECK(std::unique(epochs.begin(), epochs.end()) == epochs.end());
}

TEST_CASE("order changes with the seed and is a function of the index alone") {
  const SampleOrder a(1000, 10, 1), b(1000, 10, 1), c(1000, 10, 2);
  int different = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t j = 299 - i;  // in another sequence of calls
    CHECK(a.sample(j).first_token == b.sample(j).first_token);
    different += a.sample(i).first_token != c.sample(i).first_token;
  }
  CHECK(different > 250);
}

TEST_CASE("data of a single window keeps its grid") {
  const SampleOrder exact(9, 8, 1), longer(15, 8, 1), shifting(16, 8, 1);
  for (int64_t i = 0; i < 20; ++i) {
    CHECK(exact.sample(i).first_token == 0);
    CHECK(longer.sample(i).first_token == 0);
    CHECK(shifting.sample(i).first_token + 8 < 16);
  }
  CHECK_THROWS_WITH(SampleOrder(8, 8, 1), Catch::Contains("8 tokens") && Catch::Contains("needs 9"));
  CHECK_THROWS_AS(SampleOrder(8, 8, 1), DataError);
  CHECK_THROWS_AS(SampleOrder(0, 8, 1), DataError);
  CHECK_THROWS_AS(SampleOrder(8, 0, 1), ShapeError);
}

TEST_CASE("ten windows serve thirty-five requests, stopped and resumed anywhere") {
  Directory directory;
  const int64_t length = 4;
  const std::vector<std::string> files = {write(directory / "a.bin", raw(counting<uint16_t>(15))),
                                          write(directory / "b.bin", raw(counting<uint16_t>(13, 15))),
                                          write(directory / "c.bin", raw(counting<uint16_t>(13, 28)))};
  const auto open = [&] { return WindowDataset::shuffled(open_tokens(files, TokenFormat::nanogpt, nullptr, 0), length, 9); };
  const HostTokenBatch all = open().batch(0, 35);
  REQUIRE(all.tokens.size() == 35 * 4);
  for (size_t i = 0; i < all.tokens.size(); ++i) CHECK(all.targets[i] == all.tokens[i] + 1);
  for (int64_t k = 0; k <= 35; ++k) {
    HostTokenBatch parts = open().batch(0, k);
    const HostTokenBatch rest = open().batch(k, 35 - k);
    parts.tokens.insert(parts.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    CHECK(parts.tokens == all.tokens);
  }
}

TEST_CASE("the ranks of a step share its samples, whatever their number") {
  const SampleOrder order(500, 7, 3);
  for (const int64_t global_batch : {1, 2, 5, 12})
    for (int64_t step = 0; step < 30; ++step) {
      std::vector<int64_t> expected;
      for (int64_t i = 0; i < global_batch; ++i) expected.push_back(order.sample(step * global_batch + i).first_token);
      for (const int ranks : {1, 2, 3, 4}) {
        std::vector<int64_t> found;
        int64_t least = global_batch, most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Block local = block(global_batch, rank, ranks);
          least = std::min(least, local.count);
          most = std::max(most, local.count);
          for (int64_t i = 0; i < local.count; ++i) found.push_back(order.sample(step * global_batch + local.first + i).first_token);
        }
        CHECK(found == expected);
        CHECK(most - least <= 1);
      }
    }
}

TEST_CASE("validation windows come in order and padding is masked") {
  Directory directory;
  const std::string file = write(directory / "v.bin", raw(counting<uint16_t>(3 * 5 + 1)));
  const WindowDataset data = WindowDataset::sequential(open_tokens(std::vector{file}, TokenFormat::nanogpt, nullptr, 0), 5);
  CHECK(data.samples_per_epoch() == 3);
  const HostTokenBatch batch = data.batch(std::vector<int64_t>{2, 0, Dataset::padding});
  CHECK(batch.sequences == 3);
  CHECK(batch.valid_targets == 10);
  CHECK(batch.tokens == std::vector<int32_t>{10, 11, 12, 13, 14, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0});
  CHECK(batch.targets == std::vector<int32_t>{11, 12, 13, 14, 15, 1, 2, 3, 4, 5, -1, -1, -1, -1, -1});
  CHECK(data.batch(0, 0).tokens.empty());
  CHECK_THROWS_AS(data.batch(3, 1), DataError);
  const auto source = open_tokens(std::vector{file}, TokenFormat::nanogpt, nullptr, 0);
  CHECK(WindowDataset::sequential(source, 15).samples_per_epoch() == 1);
  CHECK_THROWS_AS(WindowDataset::sequential(source, 16), DataError);
}
