#include "comm/operation.h"

#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr uint64_t greeting_magic = 0x646d756f6e310001ull;

std::string_view name_of(OperationKind kind) {
  static constexpr std::string_view names[] = {"barrier",
                                               "broadcast",
                                               "all_reduce",
                                               "all_gather_v",
                                               "reduce_scatter_v",
                                               "all_to_all_v",
                                               "all_gather_text",
                                               "broadcast_text",
                                               "all_reduce of control values",
                                               "agree",
                                               "split",
                                               "allocate"};
  return names[static_cast<size_t>(kind)];
}

std::string_view name_of(ReduceOperation operation) {
  static constexpr std::string_view names[] = {"sum", "maximum", "minimum"};
  return names[static_cast<size_t>(operation)];
}

}  // namespace

std::string Operation::describe() const {
  std::string result = text(name_of(kind), " #", sequence);
  if (!label.empty()) result += text(" (", label, ")");
  switch (kind) {
    case OperationKind::broadcast:
      return text(result, " of ", format_count(elements), " ", dmuon::name_of(dtype), " from rank ", root);
    case OperationKind::all_reduce:
      return text(result, " (", name_of(reduction), ") of ", format_count(elements), " ", dmuon::name_of(dtype));
    case OperationKind::allocate:
      return text(result, " of ", format_count(elements), " ", dmuon::name_of(dtype));
    case OperationKind::all_reduce_values:
      return text(result, " (", name_of(reduction), "), ", format_count(elements), " values");
    case OperationKind::all_gather_v:
    case OperationKind::reduce_scatter_v:
      return text(result, " of ", format_count(elements), " ", dmuon::name_of(dtype), " cut as ", std::hex, cuts_hash & 0xffffu);
    case OperationKind::all_to_all_v:
      return text(result, " of ", dmuon::name_of(dtype));
    case OperationKind::broadcast_text:
      return text(result, " from rank ", root);
    default:
      return result;
  }
}

uint64_t hash_cuts(std::span<const int64_t> cuts) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (int64_t cut : cuts) {
    hash ^= static_cast<uint64_t>(cut);
    hash *= 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

Greeting make_greeting(const Operation& operation, int64_t payload) {
  Greeting greeting;
  greeting.magic = greeting_magic;
  greeting.sequence = operation.sequence;
  greeting.elements = operation.elements;
  greeting.cuts_hash = operation.cuts_hash;
  greeting.payload = payload;
  greeting.root = operation.root;
  greeting.kind = static_cast<uint8_t>(operation.kind);
  greeting.dtype = static_cast<uint8_t>(operation.dtype);
  greeting.reduction = static_cast<uint8_t>(operation.reduction);
  return greeting;
}

bool read_greeting(const Greeting& greeting, Operation& operation) {
  if (greeting.magic != greeting_magic || greeting.kind > static_cast<uint8_t>(OperationKind::allocate) ||
      greeting.dtype > static_cast<uint8_t>(DType::uint8) || greeting.reduction > static_cast<uint8_t>(ReduceOperation::minimum) ||
      greeting.payload < 0)
    return false;
  operation.kind = static_cast<OperationKind>(greeting.kind);
  operation.sequence = greeting.sequence;
  operation.dtype = static_cast<DType>(greeting.dtype);
  operation.reduction = static_cast<ReduceOperation>(greeting.reduction);
  operation.root = greeting.root;
  operation.elements = greeting.elements;
  operation.cuts_hash = greeting.cuts_hash;
  return true;
}

bool same_call(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.sequence == b.sequence && a.dtype == b.dtype && a.reduction == b.reduction && a.root == b.root &&
         a.elements == b.elements && a.cuts_hash == b.cuts_hash;
}

}  // namespace dmuon
