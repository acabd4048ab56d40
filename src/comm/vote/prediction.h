// What `dmuon_plan votes` prints: the predicted cost of every transport for jobs that need not exist. Communication alone;
// packing and counting come on top (dmuon_bench sign-kernels).
#pragma once

#include <string>
#include <vector>

#include "dmuon/comm/vote_cost.h"
#include "dmuon/core/json.h"

namespace dmuon {

struct VotePredictionRequest {
  int64_t parameters = 0;  // voted on; one piece, without header words
  std::vector<int64_t> workers;
  int64_t workers_per_node = 1;  // smaller jobs have one node
  LinkCost between;              // of a node, in each direction; its workers share it
  LinkCost inside;               // of a worker, to others of its node
};

// As the workers of a job see the links while all send at once: the share of a flat exchange that leaves the nodes goes
// over a link that the workers of a node share.
VoteLinks predicted_links(const VotePredictionRequest& request, int64_t workers);

// One object for every number of workers: "workers", "nodes", seconds and bytes sent by a worker under the names of the
// transports and of the all-reduces "fp32" and "bf16" (in two levels where nodes have several workers), "fastest", "times_fewer_bytes" and
// "times_faster" than fp32, and "scatter_pays_above" (votes; absent where it never does). ConfigError unless nodes are filled.
Json::Array predict_votes(const VotePredictionRequest& request);
// The same as a table for people; the fastest transport of a line is marked.
std::string describe_votes(const VotePredictionRequest& request);

}  // namespace dmuon
