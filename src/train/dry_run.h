// What a run would need, without allocating or computing it: one training step and one evaluation batch of the real code
// on a shape-only backend. A vote transport that the run would choose by measuring is counted as packed_scatter.
#pragma once

#include <string>
#include <vector>

#include "train/run.h"

namespace dmuon {

struct DryRunReport {
  JobPlans plans{Plan()};   // of counted FLOPs, whatever distribution.cost_model says: nothing is measured
  MemoryStatistics memory;  // peaks of the rank with the largest total
  int largest_rank = 0;
  std::vector<int64_t> rank_bytes;  // the total of every rank; of a large job's middle, which is not gone through, the largest
  int64_t device_bytes = 0;         // what the largest rank takes from its GPU, caches of freed memory included; 0 on a host
  int64_t resident_bytes = 0;       // of this process now: program, libraries and the opened data
  TrafficBytes sent_per_step;       // by that rank
  TrafficBytes votes_per_step;      // of them, for votes
  double model_flops_per_step = 0;  // the whole job, forward and backward
  double optimizer_flops_per_step = 0;
  std::map<std::string, double> optimizer_bytes_per_parameter;  // by rule

  // Of the memory that holds the tensors: the host's together with the program, or the device's.
  int64_t predicted_bytes() const { return device_bytes > 0 ? device_bytes : memory.total.peak + resident_bytes; }
};

// Micro-batches that a dry run goes through in a step: the first two, one for all between them and the last, and the last.
inline constexpr int64_t walked_micro_batches = 4;

// A step of more than `walked` (at least 4) micro-batches goes through so many: the first, those after it, the last. What the third
// sends counts for all that are left out: they are as long as it and leave memory as they find it.
DryRunReport dry_run(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families,
                     const RunGrid& run, int threads, int64_t walked = walked_micro_batches);

// The peaks of one rank of a run that is about to start, by the same walk. Owners are greedy's where the run searches for better ones.
MemoryStatistics predict_memory(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families,
                                const RunGrid& run, int rank, int threads);

// The ranks of a job that a dry run is about, as far as this host is to hold them.
struct DryRunHost {
  std::vector<int> ranks;
  bool present = true;  // they are started; else nobody knows how many of the job's ranks this host would get
};
// Sizes, routing, plan and memory as tables for people.
std::string describe_dry_run(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families,
                             const RunGrid& run, int threads, const DryRunHost& host);

// Resident memory of this process in bytes: now, and at its highest.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace dmuon
