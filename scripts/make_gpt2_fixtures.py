#!/usr/bin/env python3
"""Golden numbers of GPT-2 from PyTorch: tests/data/gpt2_parity.json.

A plain float64 GPT-2 in torch, sharing nothing with the C++ model but names. Weights, tokens and targets are a formula
that both sides compute exactly (SplitMix64 of name hash and index), so the file holds results only: the loss, norm and
sampled entries of every gradient, and losses and weight norms over three AdamW and three Muon steps.

    python3 -m pip install torch
    python3 scripts/make_gpt2_fixtures.py            # writes the file; made with torch 2.15.0
"""
import json
import math
import pathlib

import torch

MASK = (1 << 64) - 1
BATCH, LENGTH = 2, 16
SCALE = 1.0 / (BATCH * LENGTH)

VARIANTS = {
    "layer_norm tanh tied bias": dict(layers=2, heads=2, width=24, vocabulary_size=65, normalization="layer_norm",
                                      activation="gelu_tanh", tied_head=True, bias=True),
    "layer_norm exact untied bias": dict(layers=2, heads=3, width=36, vocabulary_size=65, normalization="layer_norm",
                                         activation="gelu", tied_head=False, bias=True),
    "rms_norm squared tied": dict(layers=2, heads=3, width=24, vocabulary_size=61, normalization="rms_norm",
                                  activation="relu_squared", tied_head=True, bias=False),
}


def mix64(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hash_name(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return mix64(value)


def formula(name, shape):
    """Uniform around 0 in matrices and biases, around 1 in norm weights."""
    count = math.prod(shape)
    base = hash_name(name)
    offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
    spread = 0.25 if len(shape) == 2 else 0.125
    values = [offset + spread * (2.0 * ((mix64((base + i) & MASK) >> 11) * 2.0**-53) - 1.0) for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def indices(name, vocabulary):
    base = hash_name(name)
    return torch.tensor([mix64((base + i) & MASK) % vocabulary for i in range(BATCH * LENGTH)]).reshape(BATCH, LENGTH)


def shapes(s):
    width = s["width"]
    result = {"embedding.token.weight": (s["vocabulary_size"], width), "embedding.position.weight": (LENGTH, width)}

    def norm(name):
        result[name + ".weight"] = (width,)
        if s["bias"]:
            result[name + ".bias"] = (width,)

    def linear(name, out, inner):
        result[name + ".weight"] = (out, inner)
        if s["bias"]:
            result[name + ".bias"] = (out,)

    for i in range(s["layers"]):
        block = f"blocks.{i}."
        norm(block + "attention_norm")
        for part in ("query", "key", "value", "output"):
            linear(block + "attention." + part, width, width)
        norm(block + "mlp_norm")
        linear(block + "mlp.up", 4 * width, width)
        linear(block + "mlp.down", width, 4 * width)
    norm("final_norm")
    if not s["tied_head"]:
        result["head.weight"] = (s["vocabulary_size"], width)
    return result


def loss_of(s, p, tokens, targets):
    functional = torch.nn.functional

    def norm(name, x):
        if s["normalization"] == "rms_norm":
            return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * p[name + ".weight"]
        return functional.layer_norm(x, (s["width"],), p[name + ".weight"], p.get(name + ".bias"), 1e-5)

    def linear(name, x):
        return functional.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def heads(x):
        return x.reshape(BATCH, LENGTH, s["heads"], -1).transpose(1, 2)

    def activation(x):
        if s["activation"] == "relu_squared":
            return torch.relu(x) ** 2
        return functional.gelu(x, approximate="tanh" if s["activation"] == "gelu_tanh" else "none")

    x = p["embedding.token.weight"][tokens] + p["embedding.position.weight"][torch.arange(LENGTH)]
    mask = torch.triu(torch.full((LENGTH, LENGTH), -math.inf, dtype=torch.float64), 1)
    for i in range(s["layers"]):
        block = f"blocks.{i}."
        h = norm(block + "attention_norm", x)
        q, k, v = (heads(linear(block + "attention." + part, h)) for part in ("query", "key", "value"))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask, -1)
        x = x + linear(block + "attention.output", (weights @ v).transpose(1, 2).reshape(BATCH, LENGTH, -1))
        x = x + linear(block + "mlp.down", activation(linear(block + "mlp.up", norm(block + "mlp_norm", x))))
    head = p["embedding.token.weight"] if s["tied_head"] else p["head.weight"]
    logits = norm("final_norm", x) @ head.T
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="sum") * SCALE


def orthogonalize(g):
    """Five steps of Keller Jordan's quintic iteration, in float64."""
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def train(s, rule, tokens, targets):
    """Three steps; rule "adamw" for everything, or "muon" for hidden matrices with AdamW for the rest."""
    p = {name: formula(name, shape).requires_grad_() for name, shape in shapes(s).items()}
    hidden = [n for n in p if n.startswith("blocks.") and p[n].dim() == 2] if rule == "muon" else []
    adamw = torch.optim.AdamW([p[n] for n in p if n not in hidden], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    momentum = {n: torch.zeros_like(p[n]) for n in hidden}
    losses = []
    for _ in range(3):
        loss = loss_of(s, p, tokens, targets)
        losses.append(loss.item())
        gradients = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        with torch.no_grad():
            for name in hidden:
                g, m = gradients[name], momentum[name]
                m.lerp_(g, 1 - 0.95)
                update = orthogonalize(g.lerp(m, 0.95))
                p[name] -= 0.02 * math.sqrt(max(1.0, g.shape[0] / g.shape[1])) * update
        for name in p:
            p[name].grad = gradients[name]
        adamw.step()
    losses.append(loss_of(s, p, tokens, targets).item())
    return dict(losses=losses, norms={name: value.detach().norm().item() for name, value in p.items()})


def samples(tensor):
    flat = tensor.reshape(-1)
    return [[i, flat[i].item()] for i in sorted({(k * 7919 + 3) % flat.numel() for k in range(4)})]


def main():
    result = dict(origin="scripts/make_gpt2_fixtures.py, torch " + torch.__version__ + ", float64", batch=BATCH, length=LENGTH,
                  variants=[])
    for name, s in VARIANTS.items():
        tokens, targets = indices("tokens", s["vocabulary_size"]), indices("targets", s["vocabulary_size"])
        p = {n: formula(n, shape).requires_grad_() for n, shape in shapes(s).items()}
        loss = loss_of(s, p, tokens, targets)
        gradients = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        result["variants"].append(dict(
            name=name, settings=dict(family="gpt2", context_length=LENGTH, **s), loss=loss.item(),
            gradients={n: dict(norm=g.norm().item(), samples=samples(g)) for n, g in gradients.items()},
            adamw=train(s, "adamw", tokens, targets), muon=train(s, "muon", tokens, targets)))
    path = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "gpt2_parity.json"
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
