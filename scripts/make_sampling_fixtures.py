#!/usr/bin/env python3
"""What transformers makes of given logits before it draws a token: tests/train/fixtures/sampling.json.

    repetition   logits, history, penalty -> processed, by RepetitionPenaltyLogitsProcessor
    filters      logits, temperature, top_k (0: all), top_p -> kept (ids, ascending) and their probabilities, by
                 TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper in the order in which generate() applies them

Logits are float32 values. The processors run in float64, and `processed` is rounded once to float32, which is what dmuon promises;
where float32 holds the penalty exactly, transformers in float32 gives the same bits, which is checked here. No case has equal logits
(of equal ones at the end of the top k transformers keeps all, dmuon the first), none has a kept token that is too unlikely to be seen
in a few thousand draws, and no sum of probabilities is near top_p, where rounding would decide.

    python3 -m pip install torch transformers
    python3 scripts/make_sampling_fixtures.py      # made with torch 2.15.0, transformers 5.24.0
"""
import json
import pathlib

import torch
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

PATH = pathlib.Path(__file__).resolve().parent.parent / "tests" / "train" / "fixtures" / "sampling.json"
HISTORIES = ([0], [3, 3, 3], [5, 0, 22, 5, 11, 0], list(range(23)), [22, 1, 2, 1, 2, 1])
PENALTIES = (1.0, 1.1, 1.25, 1.3, 2.0, 0.75)
FILTERS = ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.6, 3, 1.0), (1.0, 1, 1.0), (0.8, 0, 0.9), (1.3, 0, 0.5), (0.8, 6, 0.85), (1.0, 5, 0.3),
           (1.2, 99, 0.95), (0.5, 4, 0.99))


def repetition(logits, history, penalty):
    ids = torch.tensor([history])
    processed = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.double()[None])[0].float()
    if torch.tensor(penalty, dtype=torch.float32).item() == penalty:
        assert torch.equal(processed, RepetitionPenaltyLogitsProcessor(penalty)(ids, logits[None])[0])
    return {"logits": logits.tolist(), "history": history, "penalty": penalty, "processed": processed.tolist()}


def filters(logits, temperature, top_k, top_p):
    scores = TemperatureLogitsWarper(temperature)(None, logits.double()[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    sums = scores.softmax(-1).sort(descending=True).values.cumsum(-1)
    assert top_p == 1.0 or (sums - top_p).abs().min() > 1e-3
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    probabilities = scores.softmax(-1)[0]
    kept = probabilities.nonzero().flatten()
    assert probabilities[kept].min() > 0.005
    return {"logits": logits.tolist(), "temperature": temperature, "top_k": top_k, "top_p": top_p, "kept": kept.tolist(),
            "probabilities": probabilities[kept].tolist()}


def main():
    generator = torch.Generator().manual_seed(9)
    draw = lambda count, deviation: deviation * torch.randn(count, generator=generator)
    wide = []
    for history in HISTORIES:
        for penalty in PENALTIES:
            logits = draw(23, 4.0)
            logits[3] = 0.0
            wide.append(repetition(logits, history, penalty))
    narrow = []
    for values in FILTERS:
        logits = 1.8 * torch.rand(13, generator=generator) - 0.9
        assert len(set(logits.tolist())) == 13
        narrow.append(filters(logits, *values))
    lines = lambda cases: ",\n  ".join(json.dumps(case) for case in cases)
    PATH.write_text('{"repetition": [\n  %s],\n "filters": [\n  %s]}\n' % (lines(wide), lines(narrow)))


if __name__ == "__main__":
    main()
