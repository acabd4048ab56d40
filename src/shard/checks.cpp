#include "shard/checks.h"

#include <algorithm>

#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

std::string numbers(const auto& values) {
  std::string out;
  for (const auto& value : values) out += text(out.empty() ? "" : " ", value);
  return out;
}

// Everything that decides which collectives run in which order on which bytes, a line each.
std::vector<std::string> describe(const ShardJob& job, const UseOrder& order) {
  std::vector<std::string> lines;
  const ShardedModelOptions& options = job.options;
  lines.push_back(text("distribution: ", name_of(options.distribution), ", ", job.grid.replicas, " replicas x ", job.grid.shards,
                       " shards, compute_dtype ", name_of(options.compute_dtype), ", gradient_dtype ", name_of(options.gradient_dtype),
                       ", look_ahead ", options.look_ahead, ", reduce every micro-batch ", options.reduce_every_micro_batch));
  lines.push_back(text("order of unit uses: ", numbers(order.units)));
  lines.push_back(text("windows of units: ", numbers(job.plan.window_of_unit)));
  for (int unit = 0; unit < job.units(); ++unit) {
    const UnitBuffer& buffer = job.layout(unit);
    for (const Region& region : buffer.regions)
      lines.push_back(text("unit ", job.unit_name(unit), ": stage ", job.stage(unit), region.vote ? ", votes" : "", ", cuts ",
                           numbers(job.plan_of(region).units[static_cast<size_t>(unit)].cuts)));
    for (const UnitLayout::Entry& entry : buffer.entries)
      lines.push_back(text(
          "tensor ", job.parameter(entry.tensor).name, ": offset ", entry.offset, ", rule ",
          job.rule_of(entry.tensor) < 0 ? std::string("none") : job.rules.rules[static_cast<size_t>(job.rule_of(entry.tensor))]->name()));
  }
  lines.push_back(text("plan ", hash_to_hex(job.plan.hash())));
  if (!job.vote_plan.units.empty())
    lines.push_back(text("plan of votes ", hash_to_hex(job.vote_plan.hash()), ", transport ", name_of(options.vote_transport),
                         ", ballots of ", options.vote_ballot_bytes, " bytes, seed ", options.vote_seed));
  return lines;
}

uint64_t hash_of_plans(const ShardJob& job) {
  const uint64_t hashes[] = {job.plan.hash(), job.vote_plan.hash()};
  return hash_bytes(hashes, sizeof hashes, 0);
}

}  // namespace

void require_equal_jobs(ShardJob& job, const UseOrder& order) {
  if (job.alone()) return;
  const std::vector<std::string> mine = describe(job, order);
  const std::string all = join(mine, "\n");
  const std::vector<std::string> hashes =
      job.world.all_gather_text(hash_to_hex(hash_bytes(all.data(), static_cast<int64_t>(all.size()), 0)));
  const auto differs = std::find_if(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash != hashes[0]; });
  if (differs == hashes.end()) return;
  const std::string first = job.world.broadcast_text(all, 0);
  std::vector<std::string> theirs;
  for (size_t begin = 0; begin <= first.size();) {
    const size_t end = std::min(first.find('\n', begin), first.size());
    theirs.push_back(first.substr(begin, end - begin));
    begin = end + 1;
  }
  std::string difference;
  for (size_t i = 0; i < std::max(mine.size(), theirs.size()) && difference.empty(); ++i) {
    const std::string a = i < theirs.size() ? theirs[i] : "nothing", b = i < mine.size() ? mine[i] : "nothing";
    if (a != b) difference = text("\"", b, "\", rank 0 has \"", a, "\"");
  }
  const std::vector<std::string> differences = job.world.all_gather_text(difference);
  const auto rank = static_cast<size_t>(differs - hashes.begin());
  throw CommunicationError(text("rank ", rank, " on ", job.world.host(static_cast<int>(rank)), " made another plan: it has ",
                                differences[rank], "; do all ranks run the same build and configuration?"));
}

uint64_t hash_tensor(Backend& backend, const Tensor& tensor, uint64_t seed) {
  constexpr int64_t chunk = int64_t{1} << 24;  // bytes
  const int64_t width = size_of(tensor.dtype());
  std::vector<char> host(static_cast<size_t>(std::min(chunk, tensor.bytes())));
  for (int64_t done = 0; done < tensor.elements(); done += chunk / width) {
    const int64_t count = std::min(chunk / width, tensor.elements() - done);
    backend.copy_to_host(backend.compute_stream(), tensor.flat(done, count), host.data());
    seed = hash_bytes(host.data(), count * width, seed);
  }
  return seed;
}

void require_equal_values(ShardJob& job, const std::vector<uint64_t>& units, const std::vector<uint64_t>& masters) {
  std::string mine = hash_to_hex(hash_of_plans(job));  // a rank with another plan would go on reducing to the wrong owners
  for (uint64_t hash : units) mine += hash_to_hex(hash);
  for (uint64_t hash : masters) mine += hash_to_hex(hash);
  const std::vector<std::string> hashes = job.world.all_gather_text(mine);
  for (size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r].substr(0, 16) != hashes[0].substr(0, 16))
      throw CommunicationError(text("the plan of rank ", r, " has changed since the start"));
  // Ranks of one shard in the replicas keep equal masters, whatever travels of them.
  for (size_t unit = 0; unit < masters.size(); ++unit)
    for (size_t r = static_cast<size_t>(job.grid.shards); r < hashes.size(); ++r) {
      const auto first = static_cast<size_t>(job.grid.shard_of(static_cast<int>(r)));
      const size_t at = 16 + (units.size() + unit) * 16;
      if (hashes[r].substr(at, 16) != hashes[first].substr(at, 16))
        throw CommunicationError(text("masters that replicas vote on differ: those of unit ", job.unit_name(static_cast<int>(unit)),
                                      " on rank ", r, " (", job.world.host(static_cast<int>(r)), ") are not those of rank ", first, " (",
                                      job.world.host(static_cast<int>(first)),
                                      "); resume from the last checkpoint, and suspect that host's memory"));
    }
  for (size_t unit = 0; unit < units.size(); ++unit)
    for (size_t r = 1; r < hashes.size(); ++r)
      if (hashes[r].substr(16 + unit * 16, 16) != hashes[0].substr(16 + unit * 16, 16))
        throw CommunicationError(text("parameters differ between ranks: unit ", job.unit_name(static_cast<int>(unit)), " on rank ", r, " (",
                                      job.world.host(static_cast<int>(r)), ") is not what rank 0 (", job.world.host(0),
                                      ") computes with; resume from the last checkpoint, and suspect that host's memory"));
}

}  // namespace dmuon
