#!/usr/bin/env bash
# The checker of device tests finds what it must find and nothing else.  test_check_device_tests.sh SOURCE WORK
set -euo pipefail
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work/tests/a" "$work/tests/support"
echo 'std::unique_ptr<Backend> make_test_backend();' >"$work/tests/support/device.h"
echo '#include "support/device.h"' >"$work/tests/support/job.h"
printf 'TEST_CASE("x") {\n  f();\n}\n' >"$work/tests/a/plain.cpp"
printf '#include "support/job.h"\nTEST_CASE("x") {\n  Job job;\n}\n' >"$work/tests/a/job.cpp"
printf 'TEST_CASE("x", "[device]") {\n  auto b = make_test_backend();\n}\nTEST_CASE("y") {\n  f();\n}\n' >"$work/tests/a/tagged.cpp"

expect() {  # status, text that the output must hold; the list on standard input
  local status=0
  cat >"$work/list.txt"
  output=$("$source/tests/package/check_device_tests.sh" "$work" "$work/list.txt") || status=$?
  [[ $status == "$1" && $output == *"$2"* ]] || { echo "expected status $1 and \"$2\", got $status:"; echo "$output"; exit 1; } >&2
}
table() { printf '%s\n' "$@" >"$work/tests/device_tests.txt"; }

table '# a comment'
expect 0 '0 whole on the device, 0 by their cases' <<<'p tests/a/plain.cpp none'
expect 0 '1 whole' <<<'p tests/a/job.cpp all'
expect 1 'tests/a/job.cpp is tested on the CPU backend alone' <<<'p tests/a/job.cpp none'
expect 1 'tests/a/job.cpp is tested on the CPU backend alone' <<<'p tests/a/job.cpp tagged'  # it has no such case
expect 0 '1 by their cases' <<<'p tests/a/tagged.cpp tagged'
expect 0 '1 whole' <<<$'p tests/a/job.cpp none\nq tests/a/job.cpp all'  # in two programs
table 'tests/a/job.cpp modes that only hosts have'
expect 0 '1 explained' <<<'p tests/a/job.cpp none'
expect 1 'runs on the device now' <<<'p tests/a/job.cpp all'
expect 1 'uses no backend' <<<'p tests/a/plain.cpp none'
table 'tests/a/job.cpp'
expect 1 'has no reason' <<<'p tests/a/job.cpp none'
table ''
sed -i 's/", "\[device\]"//' "$work/tests/a/tagged.cpp"
echo 'TEST_CASE("z", "[device]") {}' >>"$work/tests/a/tagged.cpp"
expect 1 'makes the backend under test without the tag' <<<'p tests/a/tagged.cpp tagged'
