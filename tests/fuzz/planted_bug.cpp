#include "fuzz/targets.h"

namespace dmuon::fuzz {

const bool planted_bug = DMUON_FUZZ_PLANTED_BUG;

}  // namespace dmuon::fuzz
