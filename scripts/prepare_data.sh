#!/usr/bin/env bash
# Makes the token files that the larger configurations train on, from public addresses, with checks.
#   scripts/prepare_data.sh fineweb|openwebtext [--tokenizer gpt2|qwen|DIR] [--shards N] [--out DIR] [--mirror URL]
# Exit codes: 0 all files are there, 1 something could not be had or is wrong, 2 wrong usage.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'TEXT'
usage: scripts/prepare_data.sh fineweb|openwebtext [options]

  fineweb       the 10-billion-token sample of FineWeb as GPT-2 tokens: 103 files of 100 million tokens (200 MB), of which
                --shards are fetched, and one for validation
  openwebtext   OpenWebText's 21 archives of about 600 MB, of which --shards are fetched; some texts of the first are for validation

  --tokenizer T  gpt2 (default), qwen (Qwen2.5), or a directory with tokenizer files. FineWeb's tokens are used as they are for
                 gpt2; for others they are decoded to the texts that they were made of, and these are tokenized again
  --shards N     files of training data to prepare (default 10 of fineweb, 1 of openwebtext)
  --out DIR      where the token files go (default data/DATASET_T: data/fineweb_gpt2, data/fineweb_qwen, ...)
  --downloads D  where downloads are kept (default data/downloads)
  --mirror URL   fetch everything from URL/NAME instead (file:// too); checked against URL/SHA256SUMS, which has to be there
  --threads N    of the tokenizer (default all cores)

Finished files are kept, interrupted downloads go on where they stopped: after any failure run the same command again.
DMUON_DATA_TOOL names dmuon_data where it is not in build/release.
TEXT
}

fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  (($# == 0)) || printf '  %s\n' "$@" >&2
  exit 1
}
wrong_usage() {
  printf 'error: %s\n\n' "$1" >&2
  usage >&2
  exit 2
}

dataset=${1:-}
case $dataset in
  fineweb | openwebtext) shift ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) wrong_usage "the first argument is fineweb or openwebtext, found \"$dataset\"" ;;
esac
tokenizer=gpt2 shards="" out="" downloads=$root/data/downloads mirror="" threads=0
while (($#)); do
  [[ $1 != -h && $1 != --help ]] || { usage; exit 0; }
  (($# >= 2)) || wrong_usage "$1 needs a value"
  case $1 in
    --tokenizer) tokenizer=$2 ;;
    --shards) shards=$2 ;;
    --out) out=$2 ;;
    --downloads) downloads=$2 ;;
    --mirror) mirror=${2%/} ;;
    --threads) threads=$2 ;;
    *) wrong_usage "unknown option $1" ;;
  esac
  shift 2
done
case $dataset in
  fineweb) most=103 shards=${shards:-10} ;;
  openwebtext) most=21 shards=${shards:-1} ;;
esac
[[ $shards =~ ^[0-9]{1,3}$ ]] || wrong_usage "--shards $shards: expected a number"
shards=$((10#$shards))
((shards >= 1 && shards <= most)) || wrong_usage "--shards $shards: expected 1 to $most"
[[ $threads =~ ^[0-9]{1,3}$ ]] || wrong_usage "--threads $threads: expected a number"
if [[ $tokenizer != gpt2 && $tokenizer != qwen ]]; then
  [[ -d $tokenizer ]] || wrong_usage "--tokenizer $tokenizer: expected gpt2, qwen or a directory with tokenizer files"
  # Their default output would be that of the names.
  case $(basename "$tokenizer") in
    gpt2 | qwen) [[ -n $out ]] || wrong_usage "--tokenizer $tokenizer needs --out: data/${dataset}_$(basename "$tokenizer") is of --tokenizer $(basename "$tokenizer")" ;;
  esac
fi
out=${out:-$root/data/${dataset}_$(basename "$tokenizer")}
tool=${DMUON_DATA_TOOL:-$root/build/release/dmuon_data}
[[ -x $tool ]] || fail "$tool is not built; run scripts/build.sh release dmuon_data"
for program in curl xz; do
  command -v "$program" >/dev/null || fail "$program is not installed; run scripts/setup.sh"
done
mkdir -p "$downloads" "$out"
tool=$(realpath "$tool") downloads=$(realpath "$downloads") out=$(realpath "$out")

# Where things are and what is known of them. A mirror has them all side by side.
fineweb=https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main
openwebtext=https://huggingface.co/datasets/Skylion007/openwebtext/resolve/main/subsets
gpt2_files=https://openaipublic.blob.core.windows.net/gpt-2/encodings/main
qwen_files=https://huggingface.co/Qwen/Qwen2.5-0.5B/resolve/main
known_checksum() { # file name
  case $1 in
    encoder.json) echo 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 ;;
    vocab.bpe) echo 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 ;;
    tokenizer.json) echo c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539 ;;
  esac
}

exec 8>"$downloads/.lock" 9>"$out/.lock"
flock --nonblock 9 || fail "another scripts/prepare_data.sh is at work on $out"
flock --nonblock 8 || fail "another scripts/prepare_data.sh is at work on $downloads; wait for it, or give --downloads another directory"
work=$(mktemp -d "$out/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

sums=""
if [[ -n $mirror ]]; then
  sums=$work/SHA256SUMS
  curl --fail --silent --show-error --location --connect-timeout 20 --output "$sums" "$mirror/SHA256SUMS" ||
    fail "could not fetch $mirror/SHA256SUMS; a mirror needs one (sha256sum * >SHA256SUMS)"
fi

# The sha256 that a file has to have; empty where nobody says. Hugging Face gives it in the header that its own tools use.
wanted_checksum() { # url name
  if [[ -n $sums ]]; then
    awk -v name="$2" '{ file = $2; sub(/^\*/, "", file) } file == name { print $1; exit }' "$sums"
  elif [[ -n $(known_checksum "$2") ]]; then
    known_checksum "$2"
  elif [[ $1 == https://huggingface.co/* ]]; then
    curl --silent --head --connect-timeout 20 --max-time 60 "$1" 2>/dev/null |
      tr -d '\r' | awk 'tolower($1) == "x-linked-etag:" { gsub(/"/, "", $2); if (length($2) == 64) print $2; exit }' || true
  fi
}

has_checksum() { [[ $(sha256sum <"$1" | cut -d ' ' -f 1) == "$2" ]]; }

# Fetches base/NAME to $downloads/NAME, unless it is there. `check FILE` has to accept the file. NAME.sha256 says that it was compared.
fetch() { # base name check
  local url=${mirror:-$1}/$2 name=$2 check=$3 file=$downloads/$2 part=$downloads/$2.part wanted
  if [[ -e $file && -e $file.sha256 && -z $sums ]]; then
    echo "$file is there"
    return
  fi
  wanted=$(wanted_checksum "$url" "$name")
  [[ -z $sums || -n $wanted ]] || fail "$mirror/SHA256SUMS has no line for $name"
  if [[ -e $file ]]; then
    if [[ -n $wanted ]] && ! has_checksum "$file" "$wanted"; then fail "$file does not have sha256 $wanted; move it away and run this again"; fi
    "$check" "$file" || fail "$file is not what it should be (see above); move it away and run this again"
    [[ -z $wanted ]] || echo "$wanted" >"$file.sha256"
    echo "$file is there"
    return
  fi
  # A whole .part was about to be renamed: nothing is left to ask for.
  if [[ ! -e $part || -z $wanted ]] || ! has_checksum "$part" "$wanted"; then
    [[ ! -s $part ]] || echo "$name: going on after $(stat -c %s "$part") bytes"
    if ! curl --fail --silent --show-error --location --connect-timeout 20 --speed-limit 1000 --speed-time 60 --retry 3 \
      --continue-at - --output "$part" "$url"; then
      fail "could not download $name$([[ ! -s $part ]] || echo "; $part keeps what came")" \
        "from      $url" \
        "put it to $file" \
        "sha256    ${wanted:-not known here; the page of the file on its site shows it}" \
        "If this machine has no network, fetch the file elsewhere, copy it there and run the same command again: it is checked and used."
    fi
  fi
  if [[ -n $wanted ]] && ! has_checksum "$part" "$wanted"; then
    rm -f "$part"
    fail "what $url sent does not have sha256 $wanted; it was removed, run this again to fetch it anew"
  fi
  if ! "$check" "$part"; then
    rm -f "$part"
    fail "what $url sent is not what it should be (see above); it was removed"
  fi
  mv "$part" "$file"
  [[ -z $wanted ]] || echo "$wanted" >"$file.sha256"
  echo "$file: fetched and checked${wanted:+ (sha256)}"
}

any_file() { [[ -s $1 ]] || { echo "$1 is empty" >&2; false; }; }
# GPT-2's tokens in llm.c's form: header, length and every id.
gpt2_tokens() {
  local table
  table=$(cd "$(dirname "$1")" && "$tool" inspect "$(basename "$1")" --format llmc) || return 1
  awk 'NR == 3 && $6 > 50256 { print "id " $6 " is none of GPT-2'"'"'s" > "/dev/stderr"; exit 1 }' <<<"$table"
}
archive() { tar -tf "$1" >/dev/null || { echo "$1 is not a whole tar archive" >&2; false; }; }

gpt2_directory=$downloads/tokenizer_gpt2
fetch_gpt2_tokenizer() {
  local file
  for file in encoder.json vocab.bpe; do
    fetch "$gpt2_files" "$file" any_file
    mkdir -p "$gpt2_directory"
    cp "$downloads/$file" "$gpt2_directory/$file"
  done
}
case $tokenizer in
  gpt2) directory=$gpt2_directory ;;
  qwen)
    directory=$downloads/tokenizer_qwen
    fetch "$qwen_files" tokenizer.json any_file
    mkdir -p "$directory"
    cp "$downloads/tokenizer.json" "$directory/tokenizer.json"
    ;;
  *) directory=$(realpath "$tokenizer") ;;
esac
# FineWeb's own tokens have to be read where they are decoded; OpenWebText is tokenized in any case.
case $dataset-$tokenizer in
  openwebtext-gpt2) fetch_gpt2_tokenizer ;;
  openwebtext-* | fineweb-gpt2) ;;
  *) fetch_gpt2_tokenizer ;;
esac

# One directory, one tokenizer: finished files are kept, so they have to be of this one.
identity=gpt2
[[ $dataset-$tokenizer == fineweb-gpt2 ]] ||
  identity=$( (cat "$directory"/{tokenizer.json,encoder.json,vocab.json,vocab.bpe,merges.txt} 2>/dev/null || true) | sha256sum | cut -d ' ' -f 1)
if [[ -e $out/.tokenizer && $(<"$out/.tokenizer") != "$identity" ]]; then
  fail "$out holds files of another tokenizer than $directory; give --out another directory, or move it away"
fi
echo "$identity" >"$out/.tokenizer"

finished() { # prefix: its manifest is written last
  [[ -s $out/$1.json ]] && echo "$out/$1.json is there"
}
tokenize() { # prefix input... in $work
  local prefix=$1
  shift
  (cd "$work" && "$tool" tokenize "$@" --tokenizer "$directory" --threads "$threads" --output "$prefix")
  mv "$work/$prefix"_*.bin "$out/"
  mv "$work/$prefix.json" "$out/$prefix.json"
}

prepare_fineweb() { # name of theirs, name of ours
  if [[ $tokenizer == gpt2 ]]; then
    fetch "$fineweb" "$1.bin" gpt2_tokens
    ln -f "$downloads/$1.bin" "$out/$2.bin" 2>/dev/null || cp "$downloads/$1.bin" "$out/$2.bin"
    return
  fi
  finished "$2" && return
  fetch "$fineweb" "$1.bin" gpt2_tokens
  "$tool" decode "$downloads/$1.bin" --tokenizer "$gpt2_directory" --output "$work/$2.jsonl"
  tokenize "$2" "$2.jsonl"
  rm -f "$work/$2.jsonl"
}

# Every archive holds archives of about 400 texts. The first ones of the first archive are for validation.
prepare_openwebtext() { # number
  local number=$1 name inner count=0 held_out=8 target texts
  name=urlsf_subset$number
  if [[ -s $out/train_$number.json ]] && { [[ $number != 00 ]] || [[ -s $out/validation.json ]]; }; then
    echo "$out/train_$number.json is there"
    return
  fi
  fetch "$openwebtext" "$name.tar" archive
  mkdir -p "$work/outer" "$work/train" "$work/validation"
  tar -xf "$downloads/$name.tar" -C "$work/outer" --no-same-owner
  while IFS= read -r -d '' inner; do
    target=train
    [[ $number == 00 ]] && ((count < held_out)) && target=validation
    texts=$work/$target/$(printf '%05d' "$count")
    count=$((count + 1))
    mkdir "$texts"
    tar -xJf "$inner" -C "$texts" --no-same-owner --transform 's!.*/!!' --wildcards '*.txt' ||
      fail "$inner of $name.tar is no archive of texts"
    rm -f "$inner"
  done < <(find "$work/outer" -name '*.xz' -type f -print0 | sort -z)
  ((count > held_out || (count > 0 && 10#$number > 0))) || fail "$name.tar holds $count archives of texts, too few"
  for target in validation train; do
    [[ $target == train || $number == 00 ]] || continue
    local prefix=$target
    [[ $target == train ]] && prefix=train_$number
    rm -f "$out/$prefix.json" "$out/$prefix"_*.bin
    tokenize "$prefix" "$target/*/*.txt"
  done
  rm -rf "$work/outer" "$work/train" "$work/validation"
}

case $dataset in
  fineweb)
    prepare_fineweb fineweb_val_000000 validation_000000
    for ((i = 1; i <= shards; ++i)); do
      prepare_fineweb "$(printf 'fineweb_train_%06d' "$i")" "$(printf 'train_%06d' "$i")"
    done
    ;;
  openwebtext)
    for ((i = 0; i < shards; ++i)); do prepare_openwebtext "$(printf '%02d' "$i")"; done
    ;;
esac
"$tool" inspect "$out/train_*.bin" --format llmc | tail -1
echo "ready: $out/train_*.bin and $out/validation_*.bin"
