// What rules that agree by vote need of a job.
#pragma once

namespace dmuon {

struct ShardJob;

// ConfigError naming the key, the rule or the tensor: votes without a plan for them or the other way round, plans that do not
// fit each other, and distributions that votes cannot have.
void check_votes(const ShardJob& job);

}  // namespace dmuon
