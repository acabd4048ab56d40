#!/usr/bin/env python3
"""Makes tests/data_layer/fixtures/: small byte-level BPE tokenizers and the ids that the `tokenizers` library gives.

  scripts/make_tokenizer_fixtures.py TEXT [CASES]

TEXT is tiny Shakespeare (scripts/get_data.sh shakespeare). CASES, if given, is a JSON file {"cases": [{"text": ...}, ...]} whose
strings are added to those below. Needs the packages tokenizers and transformers; run by hand, its output is committed.
"""
import json
import os
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data_layer", "fixtures")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MIXED = [
    "The naïve café served crème brûlée; El niño comió piñones mañana. Straße, Größe, Übermut, fünf Äpfel.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Привет, мир! Как дела сегодня?",
    "快速的棕色狐狸跳过懒狗。你好，世界！今天天气很好，我们去公园散步。学习机器翻译很有意思。",
    "こんにちは世界。今日はいい天気ですね。日本語の文章です。カタカナとひらがな。",
    "다람쥐 헌 쳇바퀴에 타고파. 안녕하세요 세계! 오늘 날씨가 좋네요.",
    "नमस्ते दुनिया। आज मौसम अच्छा है। مرحبا بالعالم، كيف حالك اليوم؟ שלום עולם",
    "for (int i = 0; i < 10; ++i) {\n    sum += values[i] * 3.14159;\n}\n\treturn sum;\r\n",
    "🙂👍🏽👩‍👩‍👧‍👦🇩🇪 → ≤ ≥ ∑ √2 ½ ² ³ № ™ © … “quotes” ‘single’ – — • 1,234.56 2026-11-30",
]
STRINGS = [
    "", " ", "  ", "   ", "\n", "\r\n", "\n\n", " \n ", "\t", "\t\t x", "a", " a", "a ", "  a  ", "Hello, world!", "Hello  world", "Hello\nworld",
    "Hello \n\n world\r\n", "I'm you're he'll we've it's they'd don't", "I'M YOU'RE HE'LL WE'VE IT'S THEY'D DON'T", "'S'T'RE'VE'M'LL'D",
    "it\u017f 'it'\u017f '\u017f x", "rock'n'roll ''quoted''", "0", "12345", "3.14 1,000 1e-5 0x1F", "½ ² Ⅻ ٣٤٥ १२३ ①②", "a1b2c3", "word123word",
    "!!!", "!!!\n\n\n", "...\r\n...", "?!,.;: -- ---", "(a)[b]{c}<d>", "foo_bar::baz->qux()", "\u00a0nbsp\u00a0\u00a0x", "\u3000全角\u3000空格",
    "\u2003em\u2009thin\u200bzero", "\u0085next\u2028line\u2029para", "é e\u0301 é", "e\u0301e\u0301e\u0301", "ﬁ ﬂ ﬆ", "Å \u212b A\u030a", "\u1100\u1161\u11a8 각",
    "q\u0307\u0323 q\u0323\u0307", "\u0344 \u0958 क\u093c", "\u2126 \u212a \u037e \u1fef", "กำลัง ภาษาไทย", "Việt Nam tiếng Việt", "ﷺ ﻼ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚", "👩‍👩‍👧‍👦 👍🏽 🇩🇪",
    "\ufeffbom", "\u200d\ufe0f", "a\u0000b", "\u001b[31mred", "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>", "<|endoftext",
    "<|im_start|>user\nhi<|im_end|>\n", "<tool> x </tool>", "a  <pad>  b", "<|endo<|endoftext|>", "x" * 100, " " * 100, "\n" * 40, "ab" * 300, "!?" * 60, "7" * 50,
    " \u00a0 \u00a0 x", " \t \n \t y", "\r\r\n\n\r", "end.\n\nNext", "end.\r\n\r\n  Next", "a\u0301\u0301\u0301\u0301 b", "\u0301start", "😀" * 20,
] + MIXED


def train(text, corpus_extra, size, pattern, normalizer, special):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator([text] + corpus_extra * 200, trainer)
    for token in special:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def rows(tokenizer, strings):
    out = []
    for string in strings:
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(string, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(string, add_special_tokens=False).ids
        row = {"text": string, "ids": plain}
        if parsed != plain:
            row["parsed"] = parsed
        out.append(row)
    return out


def main():
    text = open(sys.argv[1], encoding="utf-8").read()[:400_000]
    strings = list(STRINGS)
    if len(sys.argv) > 2:
        strings += [case["text"] for case in json.load(open(sys.argv[2], encoding="utf-8"))["cases"] if len(case["text"]) < 300]
    strings = list(dict.fromkeys(strings))
    # Mixtures with a fixed seed: neighbours that no one thinks of.
    generator = random.Random(5)
    short = [string for string in strings if 0 < len(string) < 20]
    strings += ["".join(generator.choice(short) for _ in range(6)) for _ in range(60)]
    os.makedirs(HERE, exist_ok=True)

    def special(name, **keywords):
        return AddedToken(name, special=True, normalized=False, **keywords)

    gpt2 = train(text, MIXED, 900, None, None, [special("<|endoftext|>"), AddedToken("<pad>", lstrip=True, rstrip=True, normalized=True)])
    qwen = train(text, MIXED, 900, QWEN, normalizers.NFC(), [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
        AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=False, rstrip=True)])
    # With pairs the whole word counts first; with strings, as the older files have them, and without ignore_merges.
    gpt2_file, qwen_file = json.loads(gpt2.to_str()), json.loads(qwen.to_str())
    gpt2_file["model"]["merges"] = [" ".join(pair) for pair in gpt2_file["model"]["merges"]]
    for key in ("type", "ignore_merges", "byte_fallback"):
        gpt2_file["model"].pop(key, None)
    qwen_file["model"]["ignore_merges"] = True
    for name, content in (("gpt2", gpt2_file), ("qwen", qwen_file)):
        directory = os.path.join(HERE, name)
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(content, out, ensure_ascii=False, separators=(",", ":"))
        # What is expected comes from the file as written.
        loadable = dict(content, model=dict(content["model"], type="BPE"))
        reference = Tokenizer.from_str(json.dumps(loadable))
        with open(os.path.join(HERE, name + "_cases.json"), "w", encoding="utf-8") as out:
            json.dump({"origin": "tokenizers " + tokenizers.__version__, "cases": rows(reference, strings)}, out, ensure_ascii=True, indent=None,
                      separators=(",", ":"))
    # The older pair of files, with the same vocabulary.
    directory = os.path.join(HERE, "gpt2_files")
    os.makedirs(directory, exist_ok=True)
    vocabulary = dict(gpt2_file["model"]["vocab"])
    vocabulary["<|endoftext|>"] = len(vocabulary)
    with open(os.path.join(directory, "encoder.json"), "w", encoding="utf-8") as out:
        json.dump(vocabulary, out)
    with open(os.path.join(directory, "vocab.bpe"), "w", encoding="utf-8") as out:
        out.write("#version: 0.2\n" + "\n".join(gpt2_file["model"]["merges"]) + "\n")


main()
