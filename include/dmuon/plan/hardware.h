// What a machine does how fast, read from a file in configs/hardware/. Every number there carries its source.
//
// One matrix is [m, n] with m <= n. A schedule of Newton-Schulz costs FLOPs in m²n (products that read or write the
// m x n matrix) and in m³ (products of m x m matrices), each partly through symmetric products. Their rates come from a
// table over m, in one of two kinds of file entry:
//   "products": rates of single products, measured per size; FLOPs of a symmetric product are those of its triangle;
//   "newton_schulz": times of whole orthogonalisations, split per m by least squares over n into the rates of the m³ part
//                    and of the m²n part; with two lengths n both times are met exactly.
// On a device with many compute units a product is cut into tiles, and the last wave of tiles leaves units idle: rates are
// stored for full waves, occupancy() puts the waste back in, for the matrix or batch at hand. That is the only thing that
// makes a batch cheaper here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/core/shape.h"

namespace dmuon {

// FLOPs of one orthogonalisation: outer * m²n + inner * m³.
struct ProductCounts {
  double outer_symmetric = 0.0, outer_full = 0.0;
  double inner_symmetric = 0.0, inner_full = 0.0;
};

// FLOP/s at full occupancy of matrices whose smaller side is `size`.
struct RatePoint {
  int64_t size = 0;
  double outer_symmetric = 0.0, outer_full = 0.0;
  double inner_symmetric = 0.0, inner_full = 0.0;
};

struct NewtonSchulzSchedule {
  std::string name;
  ProductCounts counts;
  double launches = 0.0;         // kernels of one update, whatever the batch
  std::vector<RatePoint> rates;  // ascending sizes
};

struct NetworkLevel {
  double bytes_per_second = 0.0;  // in each direction: of a rank inside a node, of a whole node between nodes
  double latency_seconds = 0.0;   // of one hop of a ring
};

struct Hardware {
  std::string name, note;
  int64_t ranks_per_node = 1;  // that the file was made for; a simulation names its own grid
  double peak_flops_per_second = 0.0;
  double training_efficiency = 0.0;  // fraction of the peak that forward and backward reach
  double memory_bytes = 0.0;         // of a rank
  double memory_bytes_per_second = 0.0;
  double kernel_launch_seconds = 0.0;
  int64_t compute_units = 0, tile = 0;  // 0: occupancy is always 1
  NetworkLevel intra, inter;
  double collective_seconds = 0.0;  // fixed cost of one
  // The cheapest one is taken per shape.
  std::vector<NewtonSchulzSchedule> owner, gather;
  int64_t largest_batch = 1;
  // Tensor-sized float32 reads and writes outside Newton-Schulz: of a matrix update, of AdamW.
  double matrix_update_passes = 0.0, adamw_passes = 0.0;
  // Element-wise tensors are divided over the ranks of one node only, each node holding all (hybrid sharding), or over all.
  bool elementwise_per_node = false;
  double parameter_wire_bytes = 4.0, gradient_wire_bytes = 4.0;  // per element
};

// ConfigError naming `origin` and the key.
Hardware hardware_from_json(const Json& json, std::string_view origin);
// StorageError when the file cannot be read.
Hardware load_hardware(const std::filesystem::path& path);

// Fraction of compute units that work, averaged over the waves in which `tiles` tiles run.
double occupancy(const Hardware& hardware, double tiles);

// FLOPs of a batch, each part divided by its occupancy: divided by the rate at full occupancy they are its time.
double filled_flops(const Hardware& hardware, const ProductCounts& counts, int64_t smaller, int64_t larger, int64_t batch);

// Seconds of Newton-Schulz for a batch of equal [rows, columns] matrices by the cheapest schedule of the list.
double newton_schulz_seconds(const Hardware& hardware, const std::vector<NewtonSchulzSchedule>& schedules, int64_t rows, int64_t columns,
                             int64_t batch);
// The matrices of a tensor [rows, columns], or [heads, rows, columns]: `batch` tensors as one batch.
struct MatrixBatch {
  int64_t rows, columns, batch;
};
MatrixBatch matrix_batch(const Shape& shape, int64_t batch);

// The whole update by its owner: Newton-Schulz and element-wise passes, at least the time to launch its kernels.
double matrix_update_seconds(const Hardware& hardware, int64_t rows, int64_t columns, int64_t batch);

}  // namespace dmuon
