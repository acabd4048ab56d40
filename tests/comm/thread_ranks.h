// Runs one function per rank of a group of threads and returns what each threw ("" if nothing).
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/thread/thread_group.h"

namespace dmuon::testing {

inline std::vector<std::string> run_ranks(int ranks, const ThreadGroupOptions& options, const std::function<void(Communicator&)>& body) {
  auto group = make_thread_group(ranks, options);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(*group[static_cast<size_t>(rank)]);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace dmuon::testing
