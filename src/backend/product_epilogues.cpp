#include "dmuon/backend/product_epilogues.h"

namespace dmuon {

ProductEpilogues::~ProductEpilogues() = default;

ProductEpilogues* product_epilogues(Backend& backend) { return dynamic_cast<ProductEpilogues*>(&backend.matrix()); }

}  // namespace dmuon
