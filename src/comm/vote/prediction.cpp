#include "comm/vote/prediction.h"

#include <algorithm>
#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

int64_t nodes_of(const VotePredictionRequest& request, int64_t workers) {
  if (workers <= request.workers_per_node) return 1;
  if (workers % request.workers_per_node != 0)
    throw ConfigError(text("--workers ", workers, " does not fill nodes of ", request.workers_per_node, "; choose a multiple"));
  return workers / request.workers_per_node;
}

constexpr std::pair<const char*, int64_t> all_reduces[] = {{"fp32", 4}, {"bf16", 2}};
constexpr VoteTransportKind transports[] = {VoteTransportKind::int8_sum, VoteTransportKind::packed_gather,
                                            VoteTransportKind::packed_scatter, VoteTransportKind::hierarchical};

// Of several workers a node: reduced inside it, all-reduced between nodes by slices, gathered inside; the same bytes.
double all_reduce_seconds(const VoteSize& size, int64_t elements, int64_t element_bytes, const VoteLinks& links) {
  const int64_t per_node = size.workers / size.nodes;
  if (size.nodes == 1 || per_node == 1) return predicted_all_reduce_seconds(size.workers, elements, element_bytes, links.all);
  return predicted_all_reduce_seconds(per_node, elements, element_bytes, links.inside) +
         predicted_all_reduce_seconds(size.nodes, divide_up(elements, per_node), element_bytes, links.between);
}

Json cost(double seconds, double bytes) {
  Json result = Json::object();
  result.set("seconds", seconds);
  result.set("bytes", bytes);
  return result;
}

}  // namespace

VoteLinks predicted_links(const VotePredictionRequest& request, int64_t workers) {
  const int64_t nodes = nodes_of(request, workers);
  if (nodes == 1 && workers > 1 && request.workers_per_node > 1) return {request.inside, request.inside, request.inside};
  const int64_t per_node = workers / nodes;
  const LinkCost shared{request.between.latency_seconds, request.between.seconds_per_byte * static_cast<double>(per_node)};
  const double leaving = workers > 1 ? static_cast<double>(workers - per_node) / static_cast<double>(workers - 1) : 0;
  const LinkCost flat{request.between.latency_seconds, std::max(leaving * shared.seconds_per_byte, request.inside.seconds_per_byte)};
  return {per_node == 1 ? request.between : flat, request.inside, shared};
}

Json::Array predict_votes(const VotePredictionRequest& request) {
  Json::Array rows;
  for (const int64_t workers : request.workers) {
    const VoteSize size{workers, nodes_of(request, workers), divide_up(request.parameters, 64)};
    const VoteLinks links = predicted_links(request, workers);
    Json row = Json::object();
    row.set("workers", workers);
    row.set("nodes", size.nodes);
    for (const auto& [name, bytes] : all_reduces)
      row.set(name, cost(all_reduce_seconds(size, request.parameters, bytes, links),
                         all_reduce_bytes_per_rank(workers, request.parameters, bytes)));
    for (const VoteTransportKind kind : possible_vote_transports(size))
      row.set(std::string(name_of(kind)), cost(predicted_vote_seconds(kind, size, links), vote_bytes_per_worker(kind, size)));
    const VoteTransportKind fastest = choose_vote_transport(size, links).kind;
    row.set("fastest", std::string(name_of(fastest)));
    if (workers > 1) {
      row.set("times_fewer_bytes", all_reduce_bytes_per_rank(workers, request.parameters, 4) / vote_bytes_per_worker(fastest, size));
      row.set("times_faster",
              all_reduce_seconds(size, request.parameters, 4, links) / std::max(predicted_vote_seconds(fastest, size, links), 1e-12));
    }
    const double above = votes_where_scatter_pays(workers, links.all);
    if (std::isfinite(above)) row.set("scatter_pays_above", above);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string describe_votes(const VotePredictionRequest& request) {
  std::string result = text(format_count(request.parameters), " votes; link of a node: ", link_text(request.between));
  if (request.workers_per_node > 1)
    result += text("; ", request.workers_per_node, " workers share it; inside a node: ", link_text(request.inside));
  result += "\nSeconds of one exchange (* the fastest vote), and what that vote saves against the fp32 all-reduce:\n";
  std::vector<std::vector<std::string>> table{{"workers", "nodes", "fp32", "bf16", "int8_sum", "packed_gather", "packed_scatter"}};
  if (request.workers_per_node > 1) table[0].push_back("hierarchical");
  for (const char* name : {"times faster", "times fewer bytes", "MB sent by a worker", "scatter beats gather above"})
    table[0].push_back(name);
  for (const Json& row : predict_votes(request)) {
    const std::string fastest = row.at("fastest").as_string();
    std::vector<std::string> line{text(row.at("workers").as_integer()), text(row.at("nodes").as_integer())};
    for (const auto& [name, bytes] : all_reduces) line.push_back(vote_seconds_text(row.at(name).at("seconds").as_number()));
    for (const VoteTransportKind kind : transports) {
      if (kind == VoteTransportKind::hierarchical && request.workers_per_node == 1) continue;
      const std::string name(name_of(kind));
      line.push_back(
          row.find(name) == nullptr ? "-" : text(vote_seconds_text(row.at(name).at("seconds").as_number()), name == fastest ? " *" : ""));
    }
    const bool alone = row.at("workers").as_integer() == 1;
    line.push_back(alone ? "-" : format_number(row.at("times_faster").as_number(), 1));
    line.push_back(alone ? "-" : format_number(row.at("times_fewer_bytes").as_number(), 1));
    line.push_back(format_number(row.at(fastest).at("bytes").as_number() / 1e6, 3));
    line.push_back(row.find("scatter_pays_above") != nullptr
                       ? text(format_count(std::llround(row.at("scatter_pays_above").as_number())), " votes")
                       : "never");
    table.push_back(std::move(line));
  }
  return result + format_table(table);
}

}  // namespace dmuon
