// scripts/get_data.sh without a network: it explains itself and keeps nothing wrong.
#include <sys/wait.h>

#include <cstdlib>

#include "data_layer/files.h"
#include "dmuon/core/file.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

TEST_CASE("fetching data fails with an explanation and keeps only what has the checksum") {
  Directory directory;
  const std::string log = directory / "log", wanted = directory / "data/tinyshakespeare.txt";
  const auto fetch = [&](const std::string& url, const std::string& name) {
    const int status = std::system(text("DMUON_DATA_DIRECTORY='", directory / "data", "' DMUON_SHAKESPEARE_URL='", url, "' '",
                                        dmuon::testing::source_directory(), "/scripts/get_data.sh' ", name, " >'", log, "' 2>&1")
                                       .c_str());
    return WEXITSTATUS(status);
  };
  const std::string checksum = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";
  CHECK(fetch("file:///nowhere/input.txt", "shakespeare") == 1);
  CHECK_THAT(read_file(log),
             Contains("could not download") && Contains("file:///nowhere/input.txt") && Contains(wanted) && Contains(checksum));
  write(directory / "other.txt", "not Shakespeare");
  CHECK(fetch("file://" + (directory / "other.txt"), "shakespeare") == 1);
  CHECK(std::filesystem::is_empty(directory / "data"));
  write(wanted, "mine");
  CHECK(fetch("file://" + (directory / "other.txt"), "shakespeare") == 1);
  CHECK_THAT(read_file(log), Contains("move it away"));
  CHECK(read_file(wanted) == "mine");
  CHECK(fetch("", "atlantis") == 2);
}
