#include "cuda_on_host/checked/access_checks.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/fibers.h"
#include "cuda_on_host/language.h"
#include "cuda_on_host/shared_memory.h"
#include "cuda_on_host/stream_queue.h"
#include "dmuon/core/text.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

using dmuon::text;

namespace cuda_on_host {
namespace {

// "file.cu:12", or module and offset where the program addr2line or the line table is not there.
std::string source_line(const void* pc) {
  Dl_info info{};
  if (dladdr(pc, &info) == 0) return "an unknown place";
  // The call before the address to return to.
  const size_t offset = static_cast<size_t>(static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase)) - 1;
  char command[1200], line[512] = "";
  std::snprintf(command, sizeof command, "addr2line -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
  if (FILE* output = popen(command, "r"); output != nullptr) {
    if (std::fgets(line, sizeof line, output) == nullptr) line[0] = 0;
    pclose(output);
  }
  std::string found = line;
  found = found.substr(0, found.find_first_of(" \n"));
  if (found.empty() || found[0] == '?') return text(info.dli_fname, "+0x", std::hex, offset);
  return found.substr(found.rfind('/') + 1);
}

// Who touched a byte of shared memory, and when.
struct Access {
  int16_t thread = -1;
  uint32_t block_barriers = 0, warp_barriers = 0;
};

// True when the earlier access is that of the same thread, or a barrier or an exchange lies between.
bool ordered(const Access& before, const Position& now) {
  return before.thread < 0 || before.thread == now.thread || before.block_barriers != now.block_barriers ||
         (before.thread / 32 == now.thread / 32 && before.warp_barriers != now.warp_barriers);
}

struct Cell {
  uint64_t block = 0;  // serial number of the block that the rest is about
  Access write, reads[2];
};

// Cells of each shared variable, by its address.
std::vector<Cell>& cells_of(const SharedVariable& variable) {
  static auto* cells = new std::unordered_map<const void*, std::vector<Cell>>;
  static const void* last_memory = nullptr;
  static std::vector<Cell>* last = nullptr;
  if (last_memory != variable.memory) {
    last_memory = variable.memory;
    last = &(*cells)[variable.memory];
  }
  if (last->size() < variable.bytes) last->resize(variable.bytes);
  return *last;
}

[[noreturn]] void race(const SharedVariable& v, size_t offset, const char* what, const Access& before, bool write, const void* pc) {
  fail_kernel(cudaErrorLaunchFailure,
              text("race in shared memory \"", v.name, "\", byte ", offset, ": ", write ? "written" : "read", " at ", source_line(pc),
                   " and ", what, " by thread ", before.thread, " of the block (counted in one dimension), with no barrier between"));
}

void check_shared(const SharedVariable& v, const void* address, size_t bytes, bool write, const void* pc) {
  const size_t begin = static_cast<size_t>(static_cast<const unsigned char*>(address) - v.memory);
  if (begin + bytes > v.bytes)
    fail_kernel(cudaErrorIllegalAddress, text("out of bounds: ", bytes, " bytes ", write ? "written" : "read", " at byte ", begin,
                                              " of shared memory \"", v.name, "\" of ", v.bytes, " bytes, at ", source_line(pc)));
  std::vector<Cell>& cells = cells_of(v);
  const Position now = position();
  const Access mine{static_cast<int16_t>(now.thread), now.block_barriers, now.warp_barriers};
  for (size_t i = begin; i < begin + bytes; ++i) {
    Cell& cell = cells[i];
    if (cell.block != block_serial) {
      cell = Cell{};
      cell.block = block_serial;
    }
    if (!ordered(cell.write, now)) race(v, i, "written", cell.write, write, pc);
    if (write) {
      for (const Access& read : cell.reads)
        if (!ordered(read, now)) race(v, i, "read", read, write, pc);
      cell.write = mine;
      cell.reads[0] = cell.reads[1] = Access{};
    } else {
      if (cell.write.thread < 0 && i == begin && is_poison(v.memory + begin, bytes))
        fail_kernel(cudaErrorLaunchFailure, text("uninitialised: shared memory \"", v.name, "\", byte ", i, ", is read at ",
                                                 source_line(pc), " before anything was written to it"));
      cell.reads[ordered(cell.reads[0], now) ? 0 : 1] = mine;
    }
  }
}

void check_device(const void* address, size_t bytes, bool write, const void* pc) {
  unsigned char* shadow = shadow_of(address);
  if (shadow == nullptr) return;
  if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && reinterpret_cast<uintptr_t>(address) % bytes != 0)
    fail_kernel(cudaErrorMisalignedAddress, text("misaligned: ", bytes, " bytes ", write ? "written" : "read", " at ",
                                                 describe_address(address), ", at ", source_line(pc)));
  for (size_t i = 0; i < bytes; ++i) {
    if (shadow[i] == 0)
      fail_kernel(cudaErrorIllegalAddress, text("out of bounds: ", bytes, " bytes ", write ? "written" : "read", " at ",
                                                describe_address(address), ", at ", source_line(pc)));
    if (write) {
      shadow[i] = 2;
    } else if (shadow[i] == 1) {
      const auto* data = static_cast<const unsigned char*>(address);
      if (!is_poison(data + i, 1)) {
        shadow[i] = 2;  // written by something that is not checked, such as a library
        continue;
      }
      fail_kernel(cudaErrorLaunchFailure, text("uninitialised: ", describe_address(data + i), " is read at ", source_line(pc),
                                               " before anything was written to it"));
    }
  }
}

}  // namespace

void check_access(const void* address, size_t bytes, bool write, const void* pc) {
  if (is_device_memory(address)) {
    if (in_kernel()) return check_device(address, bytes, write, pc);
    return fail_device(cudaErrorIllegalAddress,
                       text("host code touches device memory: ", describe_address(address), ", at ", source_line(pc)));
  }
  if (!may_be_shared(address) || !in_kernel()) return;
  if (const SharedVariable* variable = shared_variable_at(address); variable != nullptr) check_shared(*variable, address, bytes, write, pc);
}

}  // namespace cuda_on_host
