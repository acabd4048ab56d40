// The blocking control operations of PeerCommunicator.
#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <tuple>

#include "comm/arguments.h"
#include "comm/collectives.h"
#include "comm/exchange.h"
#include "comm/peer_communicator.h"
#include "comm/shared/connect.h"
#include "comm/shared/shared_collectives.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::vector<std::string> PeerCommunicator::gather_text(const Operation& operation, const std::string& mine) {
  std::vector<std::string> all;
  run(operation, {[&](Exchange& exchange) { all = run_all_gather_text(exchange, std::make_shared<std::string>(mine)); },
                  [&](SharedExchange& exchange) {
                    all = shared_all_gather_text(exchange, mine);
                    return true;
                  }});
  return all;
}

std::vector<std::string> PeerCommunicator::all_gather_text(const std::string& mine) {
  return gather_text({.kind = OperationKind::all_gather_text}, mine);
}

std::string PeerCommunicator::broadcast_text(const std::string& mine, int root) {
  check_root("broadcast_text", root, size());
  std::string result;
  run({.kind = OperationKind::broadcast_text, .root = group_->world_rank(root)},
      {[&](Exchange& exchange) { result = run_broadcast_text(exchange, std::make_shared<std::string>(mine), root); },
       [&](SharedExchange& exchange) {
         result = shared_broadcast_text(exchange, mine, root);
         return true;
       }});
  return result;
}

std::vector<double> PeerCommunicator::all_reduce(std::span<const double> values, ReduceOperation reduction) {
  const int64_t count = static_cast<int64_t>(values.size());
  const auto result = std::make_shared<std::vector<double>>(values.begin(), values.end());
  run({.kind = OperationKind::all_reduce_values, .dtype = DType::float64, .reduction = reduction, .elements = count},
      {[&](Exchange& exchange) {
         exchange.keep(result);
         run_all_reduce(exchange, DType::float64, reduction, reinterpret_cast<char*>(result->data()), count);
       },
       [&](SharedExchange& exchange) { return shared_all_reduce_values(exchange, reduction, *result); }});
  return *result;
}

void PeerCommunicator::agree(bool ok, const std::string& message, ExitCode code) {
  // "" says ok; otherwise the exit code in one character, then the text.
  const std::string mine = ok ? "" : std::string(1, static_cast<char>(code)) + message;
  const std::vector<std::string> all = gather_text({.kind = OperationKind::agree}, mine);
  for (int rank = 0; rank < size(); ++rank) {
    const std::string& verdict = all[static_cast<size_t>(rank)];
    if (!verdict.empty())
      throw Error(static_cast<ExitCode>(static_cast<unsigned char>(verdict[0])), text(group_->who(rank), ": ", verdict.substr(1)));
  }
}

void PeerCommunicator::abort(ExitCode code) {
  group_->transport().abort(code);
  std::_Exit(static_cast<int>(code));  // not reached; the compiler does not trust virtual functions to not return
}

std::unique_ptr<Communicator> PeerCommunicator::split(int color, int key, const std::string& name) {
  const std::vector<std::string> all = gather_text({.kind = OperationKind::split}, text(color, " ", key));
  std::vector<std::pair<int, int>> members;  // (key, rank)
  for (int rank = 0; rank < size(); ++rank) {
    std::istringstream in(all[static_cast<size_t>(rank)]);
    int their_color = 0;
    int their_key = 0;
    in >> their_color >> their_key;
    if (their_color == color) members.emplace_back(their_key, rank);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [their_key, rank] : members) ranks.push_back(rank);
  return subgroup(ranks, name);
}

std::unique_ptr<Communicator> PeerCommunicator::divide_into_nodes(int nodes, const std::string& name) {
  check_nodes(nodes, size());
  gather_text({.kind = OperationKind::split}, text("nodes ", nodes));
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) ranks.push_back(rank);
  return subgroup(ranks, name, nodes);
}

std::unique_ptr<Communicator> PeerCommunicator::subgroup(const std::vector<int>& ranks, const std::string& name, int blocks) {
  std::vector<GroupMember> members;
  for (size_t i = 0; i < ranks.size(); ++i) {
    members.push_back(group_->member(ranks[i]));
    if (blocks > 0) members.back().node = static_cast<int>(i * static_cast<size_t>(blocks) / ranks.size());
  }
  auto transport = group_->transport().subgroup(ranks, group_->next_subgroup());
  const auto group =
      std::make_shared<Group>(name, std::move(transport), std::move(members), group_->services(), group_->deadline_seconds());
  connect_shared_memory(*group);
  return std::make_unique<PeerCommunicator>(group);
}

}  // namespace dmuon
