#include "dmuon/core/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "dmuon/core/error.h"
#include "io/io_support.h"
#include "support/catch.h"

using namespace dmuon;

TEST_CASE("a file is replaced atomically and leaves no temporary behind") {
  TemporaryDirectory directory;
  const Path path = directory / "f";
  write_file_atomically(path, "first");
  write_file_atomically(path, std::string("second\0half", 11));
  CHECK(read_file(path) == std::string("second\0half", 11));
  write_file_atomically(path, "");
  CHECK(read_file(path).empty());
  std::filesystem::create_directory(directory / "d");
  write_bytes(directory / "d/file", "");
  CHECK(contains(message_of<StorageError>([&] { write_file_atomically(directory / "d", "x"); }), (directory / "d").string()));
  CHECK(contains(message_of<StorageError>([&] { write_file_atomically(directory / "absent/f", "x"); }), "absent"));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) ++entries;
  CHECK(entries == 2);
}

TEST_CASE("reading names the path and refuses what is no regular file or too large") {
  TemporaryDirectory directory;
  write_bytes(directory / "f", "12345");
  CHECK(read_file(directory / "f", 5) == "12345");
  CHECK(contains(message_of<StorageError>([&] { read_file(directory / "f", 4); }), "holds 5 bytes, more than the 4"));
  CHECK(contains(message_of<StorageError>([&] { read_file(directory / "absent"); }), "No such file"));
  CHECK(contains(message_of<StorageError>([&] { read_file(directory.path()); }), "not a regular file"));
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK(contains(message_of<StorageError>([&] { read_file(directory / "pipe"); }), "not a regular file"));  // and does not wait
  CHECK(contains(message_of<StorageError>([&] { read_file("/dev/null"); }), "not a regular file"));
}

TEST_CASE("a rename never replaces, neither a file nor an empty directory") {
  TemporaryDirectory directory;
  write_bytes(directory / "a", "a");
  write_bytes(directory / "b", "b");
  const std::string message = message_of<StorageError>([&] { rename_durably(directory / "a", directory / "b"); });
  CHECK(contains(message, (directory / "a").string()));
  CHECK(contains(message, (directory / "b").string()));
  CHECK(contains(message, "File exists"));
  CHECK(read_file(directory / "b") == "b");
  std::filesystem::create_directory(directory / "c");
  std::filesystem::create_directory(directory / "d");
  CHECK_THROWS_AS(rename_durably(directory / "c", directory / "d"), StorageError);
  rename_durably(directory / "a", directory / "e");
  CHECK(read_file(directory / "e") == "a");
  CHECK(contains(message_of<StorageError>([&] { rename_durably(directory / "a", directory / "f"); }), "No such file"));
}

TEST_CASE("an output file is written front to back and counts its bytes") {
  TemporaryDirectory directory;
  write_bytes(directory / "f", "longer than what follows");
  OutputFile file(directory / "f");
  file.write("ab");
  file.write("", 0);
  file.write("cdef", 3);
  CHECK(file.bytes_written() == 5);
  file.close();
  file.close();  // harmless
  CHECK(read_file(directory / "f") == "abcde");
  CHECK(contains(message_of<StorageError>([&] { OutputFile other(directory.path()); }), "Is a directory"));
}

TEST_CASE("mapped files") {
  TemporaryDirectory directory;
  write_bytes(directory / "f", "abc");
  const MappedFile file(directory / "f");
  CHECK(std::memcmp(file.bytes().data(), "abc", 3) == 0);
  CHECK(file.bytes().size() == 3);
  write_bytes(directory / "empty", "");
  CHECK(MappedFile(directory / "empty").bytes().empty());
  CHECK_THROWS_AS(MappedFile(directory / "absent"), StorageError);
  CHECK_THROWS_AS(MappedFile(directory.path()), DataError);
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(MappedFile(directory / "pipe"), DataError);
}

TEST_CASE("directories") {
  TemporaryDirectory directory;
  CHECK(free_bytes(directory.path()) > 0);
  CHECK_THROWS_AS(free_bytes(directory / "absent"), StorageError);
  CHECK_NOTHROW(fsync_directory(directory.path()));
  CHECK_THROWS_AS(fsync_directory(directory / "absent"), StorageError);
}
