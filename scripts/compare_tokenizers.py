#!/usr/bin/env python3
"""Speed of dmuon's tokenizer beside that of the Hugging Face `tokenizers` library, in alternating runs of one process each.

  scripts/compare_tokenizers.py --tokenizer DIR [--tokenizer DIR ...] --text tinyshakespeare.txt [--cases tokenizer_cases.json]
                                [--bench build/release/dmuon_bench] [--data build/release/dmuon_data]
                                [--turns 5] [--threads 2] [--output report.json]

Inputs: the text in documents of about 4 KB; a text of many languages and random words, drawn with a fixed seed; and one of random
letters, in which hardly a word comes twice, so that no cache of words helps. Each run loads its tokenizer and documents and then
measures a first pass (caches are empty) and repeated ones. The library runs encode_batch_fast (no offsets), encode_batch and
encode of every document, and the fastest counts. Both sides are checked to give the same ids. Processor seconds are compared where
one thread works, since they hardly depend on what else the machine does; elapsed seconds for several threads.

For development: needs the package tokenizers; run by hand.
"""
import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

SCRIPTS = [  # ranges of letters, and how words are set apart
    ((0x61, 0x7A), " "), ((0x61, 0x7A), " "), ((0xE0, 0xF6), " "), ((0x3B1, 0x3C9), " "), ((0x430, 0x44F), " "), ((0x5D0, 0x5EA), " "),
    ((0x627, 0x64A), " "), ((0x905, 0x939), " "), ((0xE01, 0xE2E), ""), ((0x10D0, 0x10F0), " "), ((0x3041, 0x3093), ""),
    ((0x4E00, 0x9FA5), ""), ((0xAC00, 0xD7A3), " ")]


def mixed_documents(cases, text, size, seed=7):
    """Real words of many scripts shuffled, and made-up ones, with the punctuation and numbers of text."""
    draw = random.Random(seed)
    words = sorted({word for case in cases for word in case.split()} | set(text.split()[:60000]))
    documents, total = [], 0
    while total < size:
        parts, script = [], draw.choice(SCRIPTS)
        for _ in range(draw.randrange(50, 900)):
            if draw.random() < 0.05:
                script = draw.choice(SCRIPTS)
            kind = draw.random()
            (first, last), between = script
            if kind < 0.45:
                parts.append(draw.choice(words) + " ")
            elif kind < 0.9:
                parts.append("".join(chr(draw.randint(first, last)) for _ in range(1 + min(draw.randrange(9), draw.randrange(9)))) + between)
            elif kind < 0.95:
                parts.append(str(draw.randrange(10 ** draw.randrange(1, 7))) + " ")
            else:
                parts.append(draw.choice([", ", ". ", "\n", "\n\n", "! ", " - ", "(", ") ", "。", "，", "e\u0301 ", "🙂 ", "  ", "\t"]))
        documents.append("".join(parts))
        total += len(documents[-1].encode())
    return documents


def hostile_documents(size, seed=11):
    draw = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    documents, total = [], 0
    while total < size:
        words = ("".join(draw.choices(letters, range(26, 0, -1), k=draw.randrange(6, 15))) for _ in range(500))
        documents.append(" ".join(words))
        total += len(documents[-1])
    return documents


def text_documents(text):
    documents, held = [], ""
    for paragraph in text.split("\n\n"):
        held += paragraph + "\n\n"
        if len(held) > 4096:
            documents.append(held)
            held = ""
    return documents + ([held] if held else [])


LIBRARY = """
import json, resource, sys, time, tokenizers
file, documents, passes = sys.argv[1], [json.loads(line)["text"] for line in open(sys.argv[2], encoding="utf-8")], int(sys.argv[3])
tokenizer = tokenizers.Tokenizer.from_file(file)
tokenizer.encode_special_tokens = True
form = sys.argv[4]
def processor():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
rows = []
for index in range(passes):
    before, start = processor(), time.perf_counter()
    if form == "encode":
        found = [tokenizer.encode(document, add_special_tokens=False) for document in documents]
    else:
        found = getattr(tokenizer, form)(documents, add_special_tokens=False)
    seconds, used = time.perf_counter() - start, processor() - before
    rows.append({"pass": "repeated" if index else "first", "seconds": seconds, "processor_seconds": used, "tokens": sum(len(e.ids) for e in found)})
    if index == 0 and len(sys.argv) > 5:
        with open(sys.argv[5], "wb") as out:
            import array
            for encoding in found:
                array.array("i", encoding.ids).tofile(out)
    del found
print(json.dumps(rows))
"""


def library(form, tokenizer, documents, passes, threads, ids=None):
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false" if threads == 1 else "true", RAYON_NUM_THREADS=str(threads))
    command = [sys.executable, "-c", LIBRARY, tokenizer, documents, str(passes), form] + ([ids] if ids else [])
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def ours(bench, tokenizer, documents, passes, threads):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        subprocess.run([bench, "tokenize", "--tokenizer", tokenizer, "--input", documents, "--threads", str(threads), "--pairs", str(passes),
                        "--json", report.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(report.name))["rows"]


def read_ids(path, header=0, code="i"):
    found = array.array(code)
    with open(path, "rb") as file:
        file.seek(header)
        found.frombytes(file.read())
    return found.tolist()


def written_ids(data, tokenizer, documents, folder):
    prefix = os.path.join(folder, "ours")
    subprocess.run([data, "tokenize", documents, "--tokenizer", tokenizer, "--output", prefix, "--document-separator", "none", "--overwrite"],
                   check=True, stdout=subprocess.DEVNULL)
    width = json.load(open(prefix + ".json"))["bytes_per_token"]
    return read_ids(prefix + "_000000.bin", 1024, "H" if width == 2 else "I")


def library_file(directory, folder):
    """tokenizer.json, or what the library makes of vocab.json and merges.txt."""
    if os.path.exists(os.path.join(directory, "tokenizer.json")):
        return os.path.join(directory, "tokenizer.json")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    names = [[n for n in pair if os.path.exists(os.path.join(directory, n))][0] for pair in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe"))]
    tokenizer = Tokenizer(models.BPE.from_file(*[os.path.join(directory, n) for n in names]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    path = os.path.join(folder, os.path.basename(os.path.normpath(directory)) + ".json")
    tokenizer.save(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="append", required=True, help="directory of a tokenizer")
    parser.add_argument("--text", required=True, help="a plain text file")
    parser.add_argument("--cases", help='JSON with {"cases": [{"text": ...}]}: words of many languages')
    parser.add_argument("--bench", default="build/release/dmuon_bench")
    parser.add_argument("--data", default="build/release/dmuon_data")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=4.0, help="of the made texts")
    parser.add_argument("--output", help="write every measurement as JSON")
    options = parser.parse_args()
    text = open(options.text, encoding="utf-8").read()
    cases = [case["text"] for case in json.load(open(options.cases, encoding="utf-8"))["cases"]] if options.cases else []
    size = int(options.megabytes * 1e6)
    inputs = {"text": text_documents(text), "mixed languages": mixed_documents(cases, text, size), "random letters": hostile_documents(size)}
    report = []
    print("| tokenizer | input | pass | library 1 thread | dmuon 1 thread | ratio | dmuon %d threads / library 1 thread | library %d threads |"
          % (options.threads, options.threads))
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for directory in options.tokenizer:
            file = library_file(directory, folder)
            for name, documents in inputs.items():
                path = os.path.join(folder, "documents.jsonl")
                with open(path, "w", encoding="utf-8") as out:
                    out.writelines(json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents)
                megabytes = sum(len(document.encode()) for document in documents) / 1e6
                forms = {form: library(form, file, path, options.passes, 1) for form in ("encode", "encode_batch", "encode_batch_fast")}
                form = min(forms, key=lambda key: sum(row["processor_seconds"] for row in forms[key]))
                ids = os.path.join(folder, "ids")
                library(form, file, path, 1, 1, ids)
                if written_ids(options.data, directory, path, folder) != read_ids(ids):
                    sys.exit(f"{directory}, {name}: the ids differ")
                turns = [{"library": library(form, file, path, options.passes, 1), "ours": ours(options.bench, file, path, options.passes, 1),
                          "ours_threads": ours(options.bench, file, path, options.passes, options.threads),
                          "library_threads": library("encode_batch_fast", file, path, options.passes, options.threads)}
                         for _ in range(options.turns)]
                for kind in ("first", "repeated"):
                    def value(turn, side, key):
                        return statistics.median(row[key] for row in turn[side] if row["pass"] == kind)
                    def median(function):
                        return statistics.median(function(turn) for turn in turns)
                    one = median(lambda t: value(t, "library", "processor_seconds") / value(t, "ours", "processor_seconds"))
                    several = median(lambda t: value(t, "library", "seconds") / value(t, "ours_threads", "seconds"))
                    theirs = median(lambda t: value(t, "library", "seconds") / value(t, "library_threads", "seconds"))
                    print("| %s | %s, %.1f MB | %s | %.1f MB/s (%s) | %.1f MB/s | **%.2f** | **%.2f** | %.2f |" % (
                        os.path.basename(os.path.normpath(directory)), name, megabytes, kind,
                        megabytes / median(lambda t: value(t, "library", "processor_seconds")), form,
                        megabytes / median(lambda t: value(t, "ours", "processor_seconds")), one, several, theirs), flush=True)
                report.append({"tokenizer": directory, "input": name, "megabytes": megabytes, "form": form, "forms": forms, "turns": turns})
    if options.output:
        json.dump(report, open(options.output, "w"), indent=1)


if __name__ == "__main__":
    main()
