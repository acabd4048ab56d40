#!/usr/bin/env bash
# The dependency checker finds what it must find and nothing else.  test_check_dependencies.sh SOURCE WORK
set -euo pipefail
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work"/{src/{core,backend,nn,optim,data,train,novel},include/dmuon/plan,models}

expect() {  # status, text that the output must hold
  local status=0
  output=$("$source/scripts/check_dependencies.sh" "$work") || status=$?
  [[ $status == "$1" && $output == *"$2"* ]] || { echo "expected status $1 and \"$2\", got $status:"; echo "$output"; exit 1; } >&2
}
allowed() { printf '#include "%s"\n' "$2" >"$work/$1"; expect 0 "obey"; rm "$work/$1"; }
refused() { printf '\n#include "%s"\n' "$2" >"$work/$1"; expect 1 "$1:2: $3"; rm "$work/$1"; }

allowed src/core/a.cpp dmuon/core/text.h
allowed src/optim/a.cpp dmuon/newton_schulz/newton_schulz.h
allowed src/optim/a.cpp dmuon/core/text.h           # through newton_schulz
allowed src/nn/a.cpp backend/host_backend.h         # through autograd
allowed src/train/a.cpp dmuon/config/configuration.h
allowed models/a.cpp dmuon/nn/model.h
refused src/core/a.cpp dmuon/backend/backend.h "core may not include backend"
refused src/backend/a.cpp comm/world.h "backend may not include comm"
refused src/optim/a.cpp dmuon/comm/communicator.h "optim may not include comm"
refused src/data/a.cpp config/reader.h "data may not include config"
refused include/dmuon/plan/a.h dmuon/backend/backend.h "plan may not include backend"
refused models/a.cpp dmuon/optim/muon.h "models may not include optim"
refused src/core/a.cpp support/catch.h "the library may not include support/catch.h"
echo 'int x;' >"$work/src/novel/a.cpp"
expect 1 'layer "novel" is not in the table'
