// How whole jobs end: exit code, time and text.
#include <unistd.h>

#include "support/catch.h"
#include "support/mpi_launch.h"

using namespace dmuon::testing;

namespace {

Ended fault(int ranks, const std::string& name) {
  const Ended ended = run_ranks_of(DMUON_MPIEXEC, ranks, dmuon::text(DMUON_FAULT_PROGRAM, " ", name), 60);
  UNSCOPED_INFO(ended.output);
  return ended;
}

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

TEST_CASE("no fault, no error") {
  const Ended ended = fault(3, "none");
  CHECK(ended.exit_code == 0);
  CHECK(ended.output == "");
}

TEST_CASE("a rank that throws ends the job with its code and its text last") {
  const Ended ended = fault(3, "throw");
  CHECK(ended.exit_code == 2);
  CHECK(ended.seconds < 10);
  CHECK_THAT(ended.last_of_ranks(), Catch::StartsWith("dmuon: rank 2: shard train_000003.bin"));
}

TEST_CASE("a rank that stops is named at the deadline") {
  const Ended ended = fault(3, GENERATE("stop", "stop messages"));
  CHECK(ended.exit_code == 4);
  CHECK(ended.seconds < 20);
  CHECK_THAT(ended.last_of_ranks(), Catch::Contains("rank 2 (" + host() + "), which has not entered") && Catch::Contains("barrier #"));
  CHECK_THAT(ended.output, Catch::Contains("within 3.0s") && Catch::Contains("group \"world\""));
}

TEST_CASE("a rank that stops is named by its rank in the world, whatever the group, with what was under way") {
  const Ended ended = fault(4, GENERATE("'stop in a node'", "'stop in a node' messages"));
  CHECK(ended.exit_code == 4);
  CHECK_THAT(ended.output, Catch::Contains(" (gradients of blocks.3) of group \"gradients in the node\" on rank 2 (" + host()) &&
                               Catch::Contains("waiting for rank 3 (" + host() + "), which has not entered") &&
                               Catch::Contains("No sign of life from rank 3 (" + host() + ")"));
}

TEST_CASE("a rank that dies ends the job") {
  const Ended killed = fault(3, GENERATE("kill", "kill messages"));
  CHECK(killed.exit_code != 0);
  CHECK(killed.seconds < 10);
  const Ended left = fault(3, "leave");
  CHECK(left.exit_code != 0);
  CHECK(left.seconds < 10);
}

TEST_CASE("ranks in different collectives end the job and name both") {
  const Ended ended = fault(2, GENERATE("mismatch", "mismatch messages"));
  CHECK(ended.exit_code == 4);
  CHECK(ended.seconds < 10);
  CHECK_THAT(ended.last_of_ranks(), Catch::Contains("barrier #") && Catch::Contains("all_gather_text #") && Catch::Contains("rank 0 (") &&
                                        Catch::Contains("rank 1 ("));
}

TEST_CASE("a rank that stops in the middle of its data is named, one that dies there ends the job") {
  const std::string how = GENERATE("in place'", "staged'", "staged' messages");
  CAPTURE(how);
  const Ended stopped = fault(3, "'stop " + how);
  CHECK(stopped.exit_code == 4);
  CHECK(stopped.seconds < 20);
  CHECK_THAT(stopped.last_of_ranks(), Catch::Contains("all_reduce #") && Catch::Contains("rank 2 (" + host() + "), w"));
  CHECK_THAT(stopped.output, Catch::Contains("No sign of life from rank 2 (" + host() + ")"));
  const Ended killed = fault(3, "'kill " + how);
  CHECK(killed.exit_code != 0);
  CHECK(killed.seconds < 10);
}

TEST_CASE("a worker that votes on a buffer of another size, or dies in a vote, ends the job by name") {
  const std::string transport = GENERATE("int8_sum", "packed_gather", "packed_scatter", "hierarchical");
  CAPTURE(transport);
  const Ended differs = fault(4, "'vote " + transport + " size'");
  CHECK(differs.exit_code == 4);
  CHECK(differs.seconds < 20);
  // The sizes of what is exchanged first: all sums, all words, or the bytes of a slice of four or two workers.
  const std::pair<std::string, std::string> sizes = transport == "int8_sum"        ? std::pair("6,400,000 int8", "5,120,000 int8")
                                                    : transport == "packed_gather" ? std::pair("400,000 int64", "320,000 int64")
                                                    : transport == "hierarchical"  ? std::pair("400000", "320000")
                                                                                   : std::pair("200000", "160000");
  CHECK_THAT(differs.output, Catch::Contains("rank 3 (" + host() + ")") && Catch::Contains(sizes.first) && Catch::Contains(sizes.second));
  const Ended killed = fault(4, "'vote " + transport + " kill'");
  CHECK(killed.exit_code != 0);
  CHECK(killed.seconds < 10);
  CHECK_THAT(killed.output, Catch::Contains("rank 3"));  // by the launcher, or by the ranks that waited for it
}

TEST_CASE("without shared memory ranks go on by messages and say so once") {
  const Ended ended = fault(3, "'no files'");
  CHECK(ended.exit_code == 0);
  const size_t said = ended.output.find("by messages instead of shared memory");
  CHECK(said != std::string::npos);
  CHECK(ended.output.find("by messages instead of shared memory", said + 1) == std::string::npos);
}

TEST_CASE("ranks that agree on a failure end with its code") {
  const Ended ended = fault(2, "disagree");
  CHECK(ended.exit_code == 5);
  CHECK_THAT(ended.last_of_ranks(), Catch::Contains("rank 1 (" + host() + "): the disk is full"));
}

TEST_CASE("the watchdog ends a job that hangs outside of collectives") {
  const Ended ended = fault(2, "hang");
  CHECK(ended.exit_code == 4);
  CHECK(ended.seconds < 15);
  CHECK_THAT(ended.last_of_ranks(), Catch::Contains("rank 1") && Catch::Contains("\"forward\""));
}

TEST_CASE("a launcher of another MPI is detected, and one rank under a launcher is legal") {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=2"}) {
    const Ended ended = run_command(dmuon::text(variable, " ", DMUON_FAULT_PROGRAM, " none"), 60);
    INFO(ended.output);
    CHECK(ended.exit_code == 4);
    CHECK_THAT(ended.output, Catch::Contains(variable) && Catch::Contains("world of one") && Catch::Contains("mpirun"));
  }
  CHECK(fault(1, "none").exit_code == 0);
}
