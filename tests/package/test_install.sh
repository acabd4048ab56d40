#!/usr/bin/env bash
# Installs into the build folder, moves the result (it must be relocatable), and builds and runs the example that uses
# the package.  test_install.sh CMAKE SOURCE BUILD CONSUMER_FLAGS LAUNCHER
set -euo pipefail
cmake=$1 source=$2 build=$3 flags=${4#flags=} launcher=${5#launcher=}
work=$build/package_test
rm -rf "$work"
mkdir -p "$work"

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
prefix=$work/moved

fail() { echo "test_install: $*" >&2; exit 1; }
for file in include/dmuon/core/tensor.h share/dmuon/configs/quickstart.json share/dmuon/config.schema.json share/doc/dmuon/LICENSE; do
  [[ -s $prefix/$file ]] || fail "$file is not installed"
done
for tool in "$prefix"/bin/*; do
  readelf -d "$tool" | grep -E 'R(UN)?PATH' | grep -q "$build" && fail "$tool looks for libraries in the build folder"
done
"$prefix/bin/dmuon_config" check "$prefix/share/dmuon/configs/quickstart.json" >/dev/null

"$cmake" -S "$source/examples/owner_muon" -B "$work/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_FLAGS="$flags" >"$work/configure.log" || { cat "$work/configure.log"; fail "the consumer does not configure"; }
"$cmake" --build "$work/consumer" >"$work/build.log" || { cat "$work/build.log"; fail "the consumer does not build"; }
"$work/consumer/owner_muon" | tee "$work/alone.txt"
[[ -n $launcher ]] || exit 0
# Owners do not change the result: the same distances on three ranks.
$launcher "$work/consumer/owner_muon" | tee "$work/ranks.txt"
cmp "$work/alone.txt" "$work/ranks.txt" || fail "one rank and three ranks disagree"
