#include "autograd/operations/common.h"

namespace dmuon {

Variable embedding(ExecutionContext& context, const Tensor& tokens, const Variable& token_table, const Tensor& positions,
                   const Variable& position_table, double dropout, uint64_t operation) {
  require_indices("embedding", "tokens", tokens);
  require_shape(tokens.rank() == 2, "embedding: tokens must be [B, T], found ", tokens.to_string());
  const Tensor& table = token_table.value();
  require_shape(table.rank() == 2, "embedding: the token table must be [V, C], found ", token_table.to_string());
  require_computes(context, "embedding", token_table);
  const int64_t columns = table.size(1);
  if (position_table.defined()) {
    require_indices("embedding", "positions", positions);
    require_shape(positions.shape() == tokens.shape(), "embedding: positions ", positions.to_string(), " do not match tokens ",
                  tokens.to_string());
    const Tensor& other = position_table.value();
    require_shape(other.rank() == 2 && other.size(1) == columns && other.dtype() == table.dtype(), "embedding: the position table ",
                  position_table.to_string(), " does not match the token table ", token_table.to_string());
  }

  EmbeddingForward forward;
  forward.tokens = tokens;
  forward.token_table = table;
  if (position_table.defined()) {
    forward.positions = positions;
    forward.position_table = position_table.value();
  }
  forward.dropout = context.dropout_mask(dropout, operation);
  forward.output = context.allocate(Shape{tokens.size(0), tokens.size(1), columns}, table.dtype(), "embedding");
  context.backend.embedding_loss().embedding_forward(context.stream, forward);

  const bool records = context.records({&token_table, &position_table});
  Variable output = make_output(forward.output, records);
  if (records)
    context.tape->push([output = output.without_value(), tokens, positions = forward.positions, mask = forward.dropout,
                        token_table = token_table.without_value(), position_table = position_table.without_value(),
                        token_shape = table.shape(), position_shape = position_table.defined() ? position_table.shape() : Shape(),
                        dtype = table.dtype()](ExecutionContext& at) {
      EmbeddingBackward backward;
      backward.d_output = output_gradient("embedding", output, dtype);
      if (!backward.d_output.defined()) return;
      backward.tokens = tokens;
      backward.positions = positions;
      backward.dropout = mask;
      const GradientTarget d_token = parameter_target(at, token_table, token_shape, dtype);
      const GradientTarget d_position = parameter_target(at, position_table, position_shape, dtype);
      backward.d_token_table = d_token.tensor;
      backward.accumulate_token_table = d_token.accumulate;
      backward.d_position_table = d_position.tensor;
      backward.accumulate_position_table = d_position.accumulate;
      at.backend.embedding_loss().embedding_backward(at.stream, backward);
    });
  return output;
}

}  // namespace dmuon
