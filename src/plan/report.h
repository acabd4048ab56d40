// What reports and stored plans share.
#pragma once

#include "dmuon/plan/plan.h"

namespace dmuon {

Json search_json(const PlanSearch& search);

}  // namespace dmuon
