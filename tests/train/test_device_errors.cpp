// Devices that are missing, unusable or fail: a typed error that says why, exit code 6, no hang, and checkpoints that still
// resume. The device is the stand-in of tests/cuda_on_host, whose failures CUDA_ON_HOST_FAIL plans.
#include "support/catch.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;

namespace {

const std::string on_stand_in = "DMUON_CUDA_PLUGIN=" DMUON_CUDA_ON_HOST " ";
const std::string small =
    "--set model.layers=1 --set model.width=16 --set training.batch_tokens=48 --set evaluation.interval=0 --set "
    "evaluation.maximum_tokens=96 --set training.steps=8 ";

void check_fails(const SmallRun& run, const std::string& output, const std::string& arguments, const std::string& environment,
                 const std::vector<std::string>& parts) {
  const Ended ended = run.train(1, output, small + arguments, environment, 120);
  INFO(environment << "\n" << ended.output);
  CHECK(ended.exit_code == 6);
  for (const std::string& part : parts) {
    INFO(part);
    CHECK(ended.output.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a GPU that cannot be used is refused with the reason") {
  const SmallRun run;
  const std::string cuda = "--set device=cuda";
  check_fails(run, "missing", cuda, "DMUON_CUDA_PLUGIN=/nowhere/plugin.so", {"/nowhere/plugin.so", "missing"});
  check_fails(run, "driver", cuda, on_stand_in + "CUDA_ON_HOST_FAIL=driver:1", {"no NVIDIA driver"});
  check_fails(run, "old", cuda, on_stand_in + "CUDA_ON_HOST_FAIL=old_driver:1", {"too old", "CUDA 11.4", "CUDA 13.0"});
  check_fails(run, "none", cuda, on_stand_in + "CUDA_ON_HOST_DEVICES=0", {"finds no device"});
  check_fails(run, "hidden", cuda, on_stand_in + "CUDA_VISIBLE_DEVICES=99", {"finds no device", "CUDA_VISIBLE_DEVICES is \"99\""});
}

TEST_CASE("\"auto\" takes the GPU where there is one, and otherwise says why not") {
  const SmallRun run;
  const Ended found = run.train(1, "found", small + "--set training.steps=1 --set device=auto", on_stand_in, 120);
  INFO(found.output);
  CHECK(found.exit_code == 0);
  CHECK(found.output.find("device: host stand-in (sm_90, 16 GiB), driver 13.0") != std::string::npos);
  const Ended without =
      run.train(1, "without", small + "--set training.steps=1 --set device=auto", on_stand_in + "CUDA_ON_HOST_FAIL=old_driver:1", 120);
  INFO(without.output);
  CHECK(without.exit_code == 0);
  CHECK(without.output.find("no GPU: the NVIDIA driver is too old") != std::string::npos);
}

TEST_CASE("a device that fails ends the run with what failed, and the checkpoint before it resumes") {
  const SmallRun run;
  const std::string cuda = "--set device=cuda ", resume = cuda + "--resume must ";
  REQUIRE(run.train(1, "run", small + cuda + "--set training.steps=4", on_stand_in, 120).exit_code == 0);
  const auto before = run.tensors("run", 4);
  check_fails(run, "run", resume, on_stand_in + "CUDA_ON_HOST_FAIL=kernel=muon_momentum:1", {"muon_momentum"});
  check_fails(run, "run", resume, on_stand_in + "CUDA_ON_HOST_FAIL=device:400", {"queued last, the latest first"});
  check_fails(run, "run", resume, on_stand_in + "CUDA_ON_HOST_MEMORY=34000000", {"out of memory", "category", "of which", "remedy"});
  CHECK(run.tensors("run", 4) == before);
  CHECK(run.train(1, "run", small + resume, on_stand_in, 120).exit_code == 0);
}

TEST_CASE("heads that need more shared memory than a device has are refused with their width and the remedy") {
  const SmallRun run;
  const std::string sm_86 = on_stand_in + "CUDA_ON_HOST_SHARED=101376",
                    cuda = "--set device=cuda --set training.steps=1 --set model.heads=1 ";
  check_fails(run, "wide", cuda + "--set model.width=80", sm_86, {"heads of width 80 in float32", "has 99 KiB", "64 or less", "bfloat16"});
  CHECK(run.train(1, "narrow", small + cuda + "--set model.width=64", sm_86, 120).exit_code == 0);
}

TEST_CASE("a dry run for a GPU needs none") {
  const SmallRun run;
  const Ended ended = run.train(1, "dry", small + "--set device=cuda --dry-run", on_stand_in + "CUDA_ON_HOST_FAIL=driver:1", 120);
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
  CHECK(ended.output.find("taken from the device") != std::string::npos);
}

TEST_CASE("two ranks of a host on one GPU are refused") {
  const SmallRun run;
  const Ended ended = run.train(2, "two", small + "--set device=cuda", on_stand_in + "CUDA_VISIBLE_DEVICES=3", 60);
  INFO(ended.output);
  CHECK(ended.exit_code == 6);
  CHECK(ended.output.find("use one GPU") != std::string::npos);
}

TEST_CASE("with \"auto\" either every rank has a GPU of its own, or all use the CPU") {
  const SmallRun run;
  const std::string automatic = small + "--set training.steps=1 --set device=auto";
  for (const auto& [name, environment, reason] :
       {std::tuple{"fewer", "CUDA_ON_HOST_DEVICES=1", "rank 1 on "}, std::tuple{"shared", "CUDA_VISIBLE_DEVICES=3", "use one GPU"}}) {
    const Ended ended = run.train(2, name, automatic, on_stand_in + environment, 60);
    INFO(ended.output);
    CHECK(ended.exit_code == 0);
    CHECK(ended.output.find("(no GPU: rank") != std::string::npos);
    CHECK(ended.output.find(reason) != std::string::npos);
  }
}

TEST_CASE("an empty DMUON_CUDA_PLUGIN names no plug-in") {
  const SmallRun run;
  const Ended ended =
      run.train(1, "empty", small + "--set training.steps=1 --set device=auto", "DMUON_CUDA_PLUGIN= CUDA_VISIBLE_DEVICES=", 60);
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
  CHECK(ended.output.find("that DMUON_CUDA_PLUGIN names") == std::string::npos);
}
