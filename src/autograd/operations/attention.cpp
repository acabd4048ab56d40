#include <cmath>

#include "autograd/operations/common.h"

namespace dmuon {

namespace {

struct Sizes {
  int64_t batch, length, heads, groups, channels;
};

Sizes check(const Variable& query, const Variable& key, const Variable& value, const AttentionOptions& options) {
  const Tensor& q = query.value();
  const Tensor& k = key.value();
  const int64_t heads = options.heads;
  const int64_t groups = options.key_value_heads;
  require_shape(heads >= 1 && groups >= 1 && heads % groups == 0, "attention: ", heads, " heads are not a multiple of ", groups,
                " key_value_heads");
  require_shape(q.rank() == 3 && q.size(2) % heads == 0, "attention: the query must be [B, T, H*D] with H = ", heads, ", found ",
                q.to_string());
  const int64_t channels = q.size(2) / heads;
  require_shape(k.shape() == Shape({q.size(0), q.size(1), groups * channels}) && value.shape() == k.shape(), "attention: query ",
                q.to_string(), " needs key and value [", q.size(0), ", ", q.size(1), ", ", groups * channels, "], found ", k.to_string(),
                " and ", value.to_string());
  require_shape(k.dtype() == q.dtype() && value.value().dtype() == q.dtype(), "attention: dtypes of query ", q.to_string(), ", key ",
                k.to_string(), " and value ", value.to_string(), " differ");
  return {q.size(0), q.size(1), heads, groups, channels};
}

// An empty cache takes the dtype of the first keys: at stage 3 it is made before any value is there to tell.
void require_cache_dtype(ExecutionContext& context, DType dtype, AttentionCache& cache) {
  if (cache.key.dtype() == dtype && cache.value.dtype() == dtype) return;
  require_shape(std::all_of(cache.lengths.begin(), cache.lengths.end(), [](int64_t length) { return length == 0; }), "attention: keys are ",
                name_of(dtype), ", the cache holds ", cache.key.to_string());
  for (Tensor* store : {&cache.key, &cache.value}) {
    const Shape shape = store->shape();
    *store = Tensor();  // its memory first
    *store = context.allocate(shape, dtype, "attention cache");
  }
}

// Appends to the cache and attends to all that it holds of each sequence.
Tensor attend_with_cache(ExecutionContext& context, const Variable& query, const Variable& key, const Variable& value, const Sizes& sizes,
                         const AttentionOptions& options, AttentionCache& cache) {
  const int64_t group_columns = sizes.groups * sizes.channels;
  require_shape(cache.key.defined() && cache.key.rank() == 3 && cache.key.shape() == cache.value.shape() &&
                    cache.key.size(0) == sizes.batch && cache.key.size(2) == group_columns &&
                    static_cast<int64_t>(cache.lengths.size()) == sizes.batch,
                "attention: the cache must be [", sizes.batch, ", capacity, ", group_columns, "] with as many lengths, found ",
                cache.key.defined() ? cache.key.to_string() : "undefined", " with ", cache.lengths.size());
  require_cache_dtype(context, key.value().dtype(), cache);
  for (const int64_t past : cache.lengths)
    require_shape(past + sizes.length <= cache.key.size(1), "attention: ", sizes.length, " positions after ", past,
                  " exceed the cache's capacity ", cache.key.size(1));
  const Tensor output = context.allocate(query.shape(), query.value().dtype(), "attention");
  const auto heads_of = [&](const Tensor& tensor, int64_t heads) {
    return tensor.reshape(Shape{sizes.batch, tensor.size(1), heads, sizes.channels});
  };
  AttentionForward forward;
  forward.query = heads_of(query.value(), sizes.heads);
  forward.key = heads_of(cache.key, sizes.groups);
  forward.value = heads_of(cache.value, sizes.groups);
  forward.output = heads_of(output, sizes.heads);
  forward.scale = 1.0 / std::sqrt(static_cast<double>(sizes.channels));
  forward.causal = options.causal;
  forward.key_offsets = cache.lengths;
  forward.new_key = heads_of(key.value(), sizes.groups);
  forward.new_value = heads_of(value.value(), sizes.groups);
  context.backend.attention().forward(context.stream, forward);
  for (int64_t& length : cache.lengths) length += sizes.length;
  return output;
}

}  // namespace

Variable attention(ExecutionContext& context, const Variable& query, const Variable& key, const Variable& value,
                   const AttentionOptions& options, AttentionCache* cache) {
  const Sizes sizes = check(query, key, value, options);
  require_computes(context, "attention", query);
  if (cache != nullptr) {
    require_shape(context.tape == nullptr, "attention: a cache is for generation; it cannot be used while recording");
    return Variable(attend_with_cache(context, query, key, value, sizes, options, *cache));
  }
  const bool records = context.records({&query, &key, &value});
  const Shape query_shape{sizes.batch, sizes.length, sizes.heads, sizes.channels};
  const Shape key_shape{sizes.batch, sizes.length, sizes.groups, sizes.channels};
  const DType dtype = query.value().dtype();

  AttentionForward forward;
  forward.query = query.value().reshape(query_shape);
  forward.key = key.value().reshape(key_shape);
  forward.value = value.value().reshape(key_shape);
  const Tensor result = context.allocate(query.shape(), dtype, "attention");
  forward.output = result.reshape(query_shape);
  if (records)
    forward.log_sum_exp = context.allocate(Shape{sizes.batch, sizes.heads, sizes.length}, statistics_dtype(dtype), "attention statistics");
  forward.scale = 1.0 / std::sqrt(static_cast<double>(sizes.channels));
  forward.causal = options.causal;
  forward.dropout = context.dropout_mask(options.dropout, options.operation);
  context.backend.attention().forward(context.stream, forward);

  Variable output = make_output(result, records);
  if (records)
    context.tape->push([output = output.without_value(), query = query.without_value(), key = key.without_value(),
                        value = value.without_value(), forward](ExecutionContext& at) {
      AttentionBackward backward;
      const Tensor d_output = output_gradient("attention", output, forward.query.dtype());
      if (!d_output.defined()) return;
      backward.forward = forward;
      backward.d_output = d_output.reshape(forward.query.shape());
      const auto like = [&](const Tensor& tensor) {
        return at.allocate(Shape{tensor.size(0), tensor.size(1), tensor.size(2) * tensor.size(3)}, tensor.dtype(), "gradient");
      };
      Tensor d_query = like(forward.query), d_key = like(forward.key), d_value = like(forward.value);
      backward.d_query = d_query.reshape(forward.query.shape());
      backward.d_key = d_key.reshape(forward.key.shape());
      backward.d_value = d_value.reshape(forward.value.shape());
      at.backend.attention().backward(at.stream, backward);
      backward = {};
      if (query.requires_gradient()) contribute(at, query, std::move(d_query));
      if (key.requires_gradient()) contribute(at, key, std::move(d_key));
      if (value.requires_gradient()) contribute(at, value, std::move(d_value));
    });
  return output;
}

}  // namespace dmuon
