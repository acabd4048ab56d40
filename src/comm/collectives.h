// The algorithms of the collectives, as blocking calls on the thread that runs the stream's work. Each call is one
// rank's part; `operation` describes it to the peers.
//
//   barrier            greetings to all (up to 16 ranks), dissemination above
//   broadcast          binomial tree; above 256 KiB a chain of pieces, each forwarded as soon as it came
//   all_gather_v       every segment straight to every rank (up to 8 ranks), a ring of pieces above; or the form asked for
//   reduce_scatter_v   every piece straight to its owner, who adds in rank order; staging is bounded
//   all_reduce         gathered everywhere and reduced locally (up to 16 KiB), else reduce_scatter_v + all_gather_v
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "comm/reduction.h"

namespace dmuon {

void run_barrier(Exchange& exchange);
void run_broadcast(Exchange& exchange, char* data, int64_t bytes, int root);
// `cuts` in bytes here and below.
void run_all_gather_v(Exchange& exchange, char* buffer, std::span<const int64_t> cuts, GatherForm form = GatherForm::automatic);
void run_reduce_scatter_v(Exchange& exchange, const Reduction& reduction, char* buffer, std::span<const int64_t> cuts, char* result,
                          bool accumulate);
void run_all_reduce(Exchange& exchange, DType dtype, ReduceOperation operation, char* data, int64_t elements);
void run_all_to_all_v(Exchange& exchange, char* send, std::span<const int64_t> send_cuts, char* receive,
                      std::span<const int64_t> receive_cuts);
// Every rank's bytes, of any length.
std::vector<std::string> run_all_gather_text(Exchange& exchange, std::shared_ptr<std::string> mine);
std::string run_broadcast_text(Exchange& exchange, std::shared_ptr<std::string> mine, int root);

}  // namespace dmuon
