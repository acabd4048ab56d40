// The collectives of ranks that share memory, as blocking calls; each is one rank's part. Results are the same, bit for
// bit, as those of collectives.h.
//
// What fits into staging at once takes one step: everybody copies in, enters, and reads what the others copied in.
// Larger data that all ranks allocated together is read and written in place: every rank reduces its slice of all ranks'
// memory and puts the sum into all of it. Large reductions of other memory pass through two staging buffers in rounds, so
// that one is filled while the other is read; a round moves the same fraction of every rank's segment, however uneven the
// cuts. Large copies of other memory are left to messages, which MPI copies directly from process to process: such a call
// returns false, on every rank, after it has entered.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/reduction.h"
#include "comm/shared/shared_exchange.h"

namespace dmuon {

void shared_barrier(SharedExchange& exchange);
bool shared_broadcast(SharedExchange& exchange, const Tensor& data, int root);
// `cuts` in bytes here and below.
bool shared_all_gather_v(SharedExchange& exchange, const Tensor& buffer, std::span<const int64_t> cuts);
void shared_reduce_scatter_v(SharedExchange& exchange, const Reduction& reduction, const Tensor& buffer, std::span<const int64_t> cuts,
                             char* result, bool accumulate);
void shared_all_reduce(SharedExchange& exchange, ReduceOperation operation, const Tensor& data);
bool shared_all_reduce_values(SharedExchange& exchange, ReduceOperation operation, std::span<double> values);
std::vector<std::string> shared_all_gather_text(SharedExchange& exchange, const std::string& mine);
std::string shared_broadcast_text(SharedExchange& exchange, const std::string& mine, int root);

}  // namespace dmuon
