// The fuzzers' corpus, and small damages of each of its files, in the ordinary tests.
#include "dmuon/core/file.h"
#include "dmuon/core/random.h"
#include "fuzz/targets.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;

TEST_CASE("every input of the corpus, whole and damaged, ends in success or in a typed error") {
  for (const fuzz::Target& target : fuzz::targets()) {
    INFO(target.name);
    int files = 0;
    const Path corpus = Path(dmuon::testing::source_directory()) / "tests" / "fuzz" / "corpus" / target.name;
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
      INFO(entry.path());
      ++files;
      const std::string content = read_file(entry.path());
      CHECK_NOTHROW(target.run(content));
      const Random random(3, RandomStream::test, static_cast<uint64_t>(files));
      for (uint64_t i = 0; i < 50 && !content.empty(); ++i) {
        std::string damaged = content;
        damaged[random.below(content.size(), 3 * i)] = static_cast<char>(random.below(256, 3 * i + 1));
        if (i % 4 == 0) damaged.resize(random.below(content.size(), 3 * i + 2));
        CHECK_NOTHROW(target.run(damaged));
      }
    }
    CHECK(files >= 3);
  }
}
