#!/usr/bin/env python3
"""Tiny random models saved by transformers, and what transformers computes with them: tests/huggingface/fixtures.

Each folder is a directory as `save_pretrained` writes it, with expected.safetensors beside the weights:

    tokens, targets          int32 [B, T]
    loss                     float32 [1]: mean cross-entropy of the targets (not shifted)
    logits                   float32 [B, T, V]
    gradient/NAME            of the loss, for every tensor of the model, under its name in transformers
    adamw/NAME, muon/NAME    values after three steps, for the tensors outside the first layer

qwen2_float16 and qwen2_bfloat16 hold a smaller model in 16 bits, and in expected.safetensors the same tensors as float32.

gpt2 is tied and float32 in one file, qwen2 tied, with two key/value heads for four query heads, float32 in shards with an
index, qwen3 untied, bfloat16, with heads wider than hidden_size / heads. Everything is computed in float64.

AdamW: learning rate 1e-2, betas 0.9 and 0.95, epsilon 1e-3, decay 0.1. Muon: for the matrices of the layers (query, key
and value apart), momentum m = 0.95 m + 0.05 g, update orthogonalize(0.05 g + 0.95 m), learning rate 0.02 times
sqrt(max(1, out / in)), no decay; AdamW for everything else.

    python3 -m pip install torch transformers safetensors
    python3 scripts/make_huggingface_fixtures.py      # made with torch 2.15.0, transformers 5.24.0
"""
import json
import math
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config, Qwen3Config

BATCH, LENGTH = 2, 12
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "huggingface" / "fixtures"

MODELS = {
    "gpt2": (GPT2Config(vocab_size=96, n_positions=32, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=95, eos_token_id=95), torch.float32, "1GB"),
    "qwen2": (Qwen2Config(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=94,
                          eos_token_id=95, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
              torch.float32, "20KB"),
    "qwen3": (Qwen3Config(vocab_size=64, hidden_size=40, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=False,
                          bos_token_id=62, eos_token_id=63), torch.bfloat16, "1GB"),
}


def fill(model):
    """Weights large enough that every part of the model matters."""
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float32)
            if value.dim() == 2:
                value.copy_(0.2 * noise)
            else:
                offset = 1.0 if name.endswith("weight") else 0.0
                value.copy_(offset + 0.1 * noise)


def orthogonalize(g):
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def is_hidden(name, value):
    return value.dim() == 2 and (".layers." in name or ".h." in name)


def matrices(name, value):
    """The matrices [out, in] that a tensor holds, as views."""
    if ".h." in name:
        value = value.T  # Conv1D keeps [in, out]
    return value.split(value.shape[0] // 3) if "c_attn" in name else [value]


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)), logits


def train(directory, rule, tokens, targets):
    model = load(directory)
    parameters = dict(model.named_parameters())
    hidden = [n for n, p in parameters.items() if is_hidden(n, p)] if rule == "muon" else []
    adamw = torch.optim.AdamW([p for n, p in parameters.items() if n not in hidden], lr=1e-2, betas=(0.9, 0.95), eps=1e-3,
                              weight_decay=0.1)
    momentum = {n: torch.zeros_like(parameters[n]) for n in hidden}
    for _ in range(3):
        model.zero_grad()
        loss_of(model, tokens, targets)[0].backward()
        with torch.no_grad():
            for name in hidden:
                g, m, p = parameters[name].grad, momentum[name], parameters[name]
                m.lerp_(g, 0.05)
                for part, update in zip(matrices(name, p), matrices(name, g.lerp(m, 0.95))):
                    part -= 0.02 * math.sqrt(max(1.0, update.shape[0] / update.shape[1])) * orthogonalize(update)
        adamw.step()
    return {n: p.detach() for n, p in parameters.items() if ".0." not in n}


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager").eval()


def half(dtype, special):
    """A directory in a 16-bit type with values that are easily widened wrongly, and expected.safetensors with what they are."""
    directory = ROOT / ("qwen2_" + str(dtype).split(".")[1])
    shutil.rmtree(directory, ignore_errors=True)
    config = Qwen2Config(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config)
    fill(model)
    model.to(dtype)
    with torch.no_grad():
        model.model.embed_tokens.weight.view(-1)[:len(special)] = torch.tensor(special, dtype=torch.float64).to(dtype)
    model.save_pretrained(directory)
    save_file({name: value.float() for name, value in load_file(directory / "model.safetensors").items()},
              directory / "expected.safetensors")


def main():
    tiny = 2.0 ** -24  # the smallest float16
    half(torch.float16, [0.0, -0.0, tiny, -tiny, 1023 * tiny, 1024 * tiny, 1025 * tiny, 65504.0, -65504.0, 1.0, 1.0 + 2 ** -10])
    half(torch.bfloat16, [0.0, -0.0, 2.0 ** -133, -(2.0 ** -133), 127 * 2.0 ** -133, 2.0 ** -126, 3.3895e38, -3.3895e38, 1.0, 1.0 + 2 ** -7])
    for name, (config, dtype, shard) in MODELS.items():
        directory = ROOT / name
        shutil.rmtree(directory, ignore_errors=True)
        model = AutoModelForCausalLM.from_config(config)
        fill(model)
        model.to(dtype).save_pretrained(directory, max_shard_size=shard)
        generator = torch.Generator().manual_seed(7)
        tokens = torch.randint(config.vocab_size, (BATCH, LENGTH), generator=generator)
        targets = torch.randint(config.vocab_size, (BATCH, LENGTH), generator=generator)
        model = load(directory)
        loss, logits = loss_of(model, tokens, targets)
        loss.backward()
        result = {"tokens": tokens.int(), "targets": targets.int(), "loss": loss.detach().reshape(1), "logits": logits.detach()}
        result |= {f"gradient/{n}": p.grad for n, p in model.named_parameters()}
        for rule in ("adamw", "muon"):
            result |= {f"{rule}/{n}": p for n, p in train(directory, rule, tokens, targets).items()}
        save_file({n: (t.float() if t.is_floating_point() else t).contiguous() for n, t in result.items()},
                  directory / "expected.safetensors")
        print(name, {f.name: f.stat().st_size for f in sorted(directory.iterdir())}, "loss", loss.item())


if __name__ == "__main__":
    main()
