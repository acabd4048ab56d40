// Counts beyond 2^31: 2.2 GiB on two ranks that are threads (about 4.5 GiB of memory), by messages, staged and in place.
#include <cstring>

#include "comm/thread_ranks.h"
#include "dmuon/backend/backend.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::testing;

TEST_CASE("collectives move more than 2^31 bytes and elements") {
  constexpr int64_t elements = (int64_t{1} << 31) + 200000003;
  constexpr int64_t cut = 100000007;
  const bool shared_memory = GENERATE(false, true);
  const bool in_place = shared_memory && GENERATE(false, true);
  CAPTURE(shared_memory, in_place);
  const auto allocator = make_host_allocator();
  std::vector<int> wrong(2);
  const auto errors = run_ranks(2, {.deadline_seconds = 200, .shared_memory = shared_memory}, [&](Communicator& group) {
    const auto backend = make_cpu_backend();
    const auto stream = make_inline_stream();
    const auto check = [&](bool ok) { wrong[static_cast<size_t>(group.rank())] += !ok; };
    const Tensor data = in_place ? group.allocate(*backend, {elements}, DType::uint8, MemoryCategory::gradients, "huge")
                                 : Tensor(allocator->allocate(elements, MemoryCategory::gradients, "huge"), 0, {elements}, DType::uint8);
    uint8_t* bytes = data.data<uint8_t>();
    const auto mark = [&](int64_t i) { return static_cast<uint8_t>(i * 7 + 3); };
    const std::vector<int64_t> places{0, cut - 1, cut, (int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{1} << 31) + 1, elements - 1};
    const std::vector<int64_t> cuts{0, cut, elements};

    std::memset(bytes, 0, static_cast<size_t>(elements));
    for (int64_t i : places)
      if ((i >= cut) == (group.rank() == 1)) bytes[i] = mark(i);
    group.all_gather_v(*stream, data, cuts);
    for (int64_t i : places) check(bytes[i] == mark(i));
    check(bytes[places[4] + 2] == 0);

    if (group.rank() == 0) bytes[(int64_t{1} << 31) + 5] = 99;
    group.all_reduce(*stream, data, ReduceOperation::maximum);
    check(bytes[(int64_t{1} << 31) + 5] == 99);
    for (int64_t i : places) check(bytes[i] == mark(i));

    if (group.rank() == 1) bytes[elements - 2] = 55;
    group.broadcast(*stream, data, 1);
    check(bytes[elements - 2] == 55);
    check(group.bytes_sent() > int64_t{1} << 31);
  });
  CHECK(errors == std::vector<std::string>{"", ""});
  CHECK(wrong == std::vector<int>{0, 0});
}
