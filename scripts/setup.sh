#!/usr/bin/env bash
# Installs what a Debian 12 machine lacks to build and run dmuon. The only list of packages in the tree.
#   scripts/setup.sh            install what is missing (as root, or through sudo)
#   scripts/setup.sh --check    install nothing; name the exact command and fail if something is missing
#   scripts/setup.sh --list     print the list
set -euo pipefail
case "${1:-}" in -h | --help) awk 'NR > 1 && (!/^#/ || /^#SBATCH/) {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"; exit ;; esac

packages=(
  g++ cmake ninja-build ccache mold          # build
  libopenmpi-dev openmpi-bin                 # ranks
  libdnnl-dev                                # matrix products
  coinor-libcbc-dev                          # the planner's integer programs
  libpcre2-dev libutf8proc-dev               # tokenizers
  libcli11-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev
  catch2 libboost-context-dev                # tests
  clang-format-14                            # .ci/run
  clang-14 libclang-rt-14-dev                # scripts/fuzz.sh
  ca-certificates curl xz-utils              # scripts/prepare_data.sh
)

case "${1:-}" in
  --list) printf '%s\n' "${packages[@]}"; exit 0 ;;
  --check | "") ;;
  *) echo "usage: scripts/setup.sh [--check | --list]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is no Debian-like system; install the counterparts of: ${packages[*]}" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi

install="apt-get install -y --no-install-recommends ${missing[*]}"
if [[ "${1:-}" == --check ]]; then
  echo "setup: missing packages; install them with: sudo apt-get update && sudo $install" >&2
  exit 1
fi

as_root=()
if ((EUID != 0)); then
  # -n: never wait for a password that nobody can type.
  if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
    echo "setup: packages are missing and this user can neither install nor use sudo without a password. Run once:" >&2
    echo "  sudo apt-get update && sudo $install" >&2
    exit 1
  fi
  as_root=(sudo -n)
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" </dev/null >"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "setup: '$*' failed" >&2; exit 1; }; }
run apt-get update
# shellcheck disable=SC2086
run $install
echo "setup: done"
