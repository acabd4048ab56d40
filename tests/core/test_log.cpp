#include "dmuon/core/log.h"

#include "dmuon/core/error.h"
#include "io/io_support.h"
#include "support/catch.h"

using namespace dmuon;

TEST_CASE("the log file is appended to and names the rank") {
  TemporaryDirectory directory;
  const std::string file = (directory / "run.log").string();
  write_bytes(file, "earlier run\n");
  configure_log({.rank = 3, .ranks = 4, .level = LogLevel::error, .file = file});
  log_information("step {} 100 %");  // braces and percent signs are text
  log_debug("detail");
  configure_log({});
  const std::string content = read_file(file);
  CHECK(content.starts_with("earlier run\n"));
  CHECK(contains(content, "info [rank 3] step {} 100 %\n"));
  CHECK(contains(content, "debug [rank 3] detail\n"));
  CHECK(contains(message_of<StorageError>([&] { configure_log({.rank = 0, .ranks = 1, .level = LogLevel::error, .file = file + "/x"}); }),
                 file));
}
