// A whole Muon update through DeviceDirect: momentum, norm, the direct form of the library, apply.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device_direct.h"
#include "dmuon/optim/muon.h"

namespace dmuon::bench {

class DirectUpdate {
 public:
  // Matrices of one shape go together, in groups of the form's batch. Allocates everything that queue() needs.
  DirectUpdate(Backend& backend, const MuonOptions& options, std::span<const UpdateItem> items, const DirectForm& form);

  void queue(Stream& stream);
  // What a recording has to name.
  std::vector<Tensor> tensors() const;

 private:
  struct ShapeGroup {
    std::vector<UpdateItem> items;
    std::unique_ptr<DeviceDirect> direct;
    std::vector<Tensor> updates, sums;  // of a batch
  };
  void queue(Stream& stream, ShapeGroup& group, size_t first, size_t count);

  Backend& backend_;
  MuonOptions options_;
  size_t batch_;
  std::map<std::string, ShapeGroup> groups_;  // by shape
  Tensor hyper_;
};

}  // namespace dmuon::bench
