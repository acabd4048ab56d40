// How kernels of the CPU backend share their work: a fixed number of parts, part p always the same range, run by as many
// threads where that is allowed and one after another elsewhere. So results never depend on which of the two happened.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dmuon::cpu {

struct Team {
  int parts = 1;          // the backend's threads
  bool threaded = false;  // false on a communication worker, which must not enter a parallel region

  // body(part) for every part.
  template <class Body>
  void run(const Body& body) const {
    if (!threaded || parts == 1) {
      for (int part = 0; part < parts; ++part) body(part);
      return;
    }
#pragma omp parallel for schedule(static, 1) num_threads(parts)
    for (int part = 0; part < parts; ++part) body(part);
  }

  // body(part, begin, end) for `count` items cut into equal ranges on multiples of `granularity`; empty ranges are left
  // out, and work too small to be worth waking threads runs on the caller (same ranges).
  template <class Body>
  void split(int64_t count, int64_t granularity, int64_t worthwhile, const Body& body) const {
    const int64_t units = (count + granularity - 1) / granularity;
    Team team = *this;
    if (count < worthwhile) team.threaded = false;
    team.run([&](int part) {
      const int64_t begin = units * part / parts * granularity;
      const int64_t end = std::min(units * (part + 1) / parts * granularity, count);
      if (begin < end) body(part, begin, end);
    });
  }
};

}  // namespace dmuon::cpu
