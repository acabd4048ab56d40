#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_language.h"
#include "backend/cuda/missing.h"

namespace dmuon::cuda {

void Signs::pack(Stream&, const PackSigns&) { missing("signs_pack"); }

void Signs::vote(Stream&, const VoteSigns&) { missing("signs_vote"); }

void Signs::count(Stream&, const CountSigns&) { missing("signs_count"); }

void Signs::vote_counts(Stream&, const VoteCounts&) { missing("signs_vote_counts"); }

void Signs::expand(Stream&, const ExpandSigns&) { missing("signs_expand"); }

void Signs::threshold(Stream&, const ThresholdSigns&) { missing("signs_threshold"); }

void Signs::apply(Stream&, const ApplySigns&) { missing("signs_apply"); }

void Signs::unpack(Stream&, const UnpackSigns&) { missing("signs_unpack"); }

}  // namespace dmuon::cuda
