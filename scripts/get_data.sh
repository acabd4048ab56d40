#!/bin/sh
# Fetches public data sets into data/ and checks them.   scripts/get_data.sh shakespeare
# Exit codes: 0 the right file is there, 1 it could not be had, 2 wrong usage.
set -eu

usage() {
  cat <<'EOF'
usage: scripts/get_data.sh shakespeare

  shakespeare   tiny Shakespeare, 1.1 MB of plain text, to data/tinyshakespeare.txt

A file that is there already and has the right checksum is kept; DMUON_DATA_DIRECTORY names another place than data/.
EOF
}

directory=${DMUON_DATA_DIRECTORY:-$(cd "$(dirname "$0")/.." && pwd)/data}

has_checksum() { # file sha256
  [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$2" ]
}

download() { # url file
  if command -v curl >/dev/null 2>&1; then
    curl --fail --silent --show-error --location --connect-timeout 20 --max-time 600 --output "$2" "$1"
  elif command -v wget >/dev/null 2>&1; then
    wget --quiet --timeout=20 --tries=2 --output-document="$2" "$1"
  else
    echo "neither curl nor wget is installed" >&2
    return 1
  fi
}

fetch() { # name url sha256 file
  if has_checksum "$4" "$3"; then
    echo "$4 is there and has the right checksum"
    return 0
  fi
  if [ -e "$4" ]; then
    echo "error: $4 exists, but its sha256 is not $3; move it away and run this again" >&2
    return 1
  fi
  mkdir -p "$directory"
  part=$4.part-$$
  trap 'rm -f "$part"' EXIT
  trap 'exit 130' INT TERM
  if ! download "$2" "$part"; then
    cat >&2 <<EOF
error: could not download $1.
  from      $2
  put it to $4
  sha256    $3
If this machine has no network, fetch the file elsewhere, copy it there and run this again: it will be checked and used.
EOF
    return 1
  fi
  if ! has_checksum "$part" "$3"; then
    echo "error: what $2 sent has sha256 $(sha256sum <"$part" | cut -d ' ' -f 1), expected $3; nothing was kept" >&2
    return 1
  fi
  mv "$part" "$4"
  echo "$4: fetched and checked"
}

case ${1:-} in
  shakespeare)
    fetch "tiny Shakespeare" \
      "${DMUON_SHAKESPEARE_URL:-https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt}" \
      86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed "$directory/tinyshakespeare.txt"
    ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
