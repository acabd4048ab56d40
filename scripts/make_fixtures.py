#!/usr/bin/env python3
"""Writes tests/data/optimizer_fixtures.json: float64 goldens for the update rules and schedules.

The Muon trajectories are transcriptions of the public implementations (named beside each preset), written from their
sources' semantics and independent of the C++ code: plain numpy, float64, no symmetric or Gram shortcuts. AdamW and SGD
are run by torch itself. torch.optim.Muon works in bfloat16, so it is only compared loosely with its transcription here.

    pip install numpy torch
    scripts/make_fixtures.py                   # rewrites the fixture; same bytes on the same versions

The tests read the fixture only; neither Python nor torch is needed to run them.
"""
import argparse
import json
import math
import pathlib

import numpy as np

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
SETS = json.loads((DATA / "muon_fixtures.json").read_text())["coeffs"]  # published tables


# ------------------------------------------------------------------------------------------------------------- Muon

def newton_schulz(x, rows):
    """X <- a X + (b A + c A A) X with A = X X^T, on the wide orientation."""
    if x.shape[0] > x.shape[1]:
        return newton_schulz(x.T, rows).T
    for a, b, c in rows:
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x


def keller(g, m, mu):  # KellerJordan/Muon muon.py: muon_update, zeropower_via_newtonschulz5
    m = m + (g - m) * (1 - mu)
    u = g + (m - g) * mu
    o = newton_schulz(u / (np.linalg.norm(u) + 1e-7), SETS["keller5"])
    return m, o * max(1, u.shape[0] / u.shape[1]) ** 0.5


def torch_muon(g, m, mu):  # torch/optim/_muon.py, adjust_lr_fn "original"
    m = m + (g - m) * (1 - mu)
    u = g + (m - g) * mu
    o = newton_schulz(u / max(np.linalg.norm(u), 1e-7), SETS["keller5"])
    return m, o * math.sqrt(max(1, u.shape[0] / u.shape[1]))


def moonlight(g, m, mu):  # MoonshotAI/Moonlight examples/toy_train.py
    m = mu * m + g
    u = g + mu * m
    o = newton_schulz(u / (np.linalg.norm(u) + 1e-7), SETS["keller5"])
    return m, o * 0.2 * math.sqrt(max(u.shape))


def dion(g, m, mu):  # microsoft/dion muon.py defaults: no nesterov, Polar Express, spectral norm scaling
    m = mu * m + g
    o = newton_schulz(m / (np.linalg.norm(m) * 1.02 + 1e-6), SETS["pe_dion_102"])
    return m, o * math.sqrt(m.shape[0] / m.shape[1])


def emerging(g, m, mu):  # NVIDIA-NeMo/Emerging-Optimizers muon.py defaults
    m = m + (g - m) * (1 - mu)
    o = newton_schulz(m / max(np.linalg.norm(m), 1e-15), SETS["you5"])
    return m, o * max(m.shape) ** 0.5


def dmuon(g, m, mu):  # arXiv:2606.27153: sum momentum, nesterov, Polar Express / 1.05, RMS matching
    m = mu * m + g
    u = g + mu * m
    o = newton_schulz(u / (np.linalg.norm(u) + 1e-7), SETS["pe_dao_105"])
    return m, o * 0.2 * math.sqrt(max(u.shape))


PRESETS = {  # update, learning rate, weight decay
    "keller": (keller, 0.02, 0.0),
    "torch": (torch_muon, 1e-3, 0.1),
    "moonlight": (moonlight, 1e-3, 0.1),
    "dion": (dion, 0.01, 0.01),
    "emerging": (emerging, 3e-4, 0.01),
    "dmuon": (dmuon, 0.02, 0.0),
}
SHAPES = {"tall": [7, 3], "wide": [3, 8], "square": [4, 4], "row": [1, 5], "column": [5, 1], "convolution": [3, 2, 2, 2]}
STEPS = 4  # the third gradient is zero: momentum goes on alone


def trajectory(preset, start, gradients, momentum, weight_decay=None):
    update, rate, decay = PRESETS[preset]
    decay = decay if weight_decay is None else weight_decay
    shape = start.shape
    w = start.reshape(shape[0], -1)
    m = np.zeros_like(w)
    result = []
    for step, gradient in enumerate(gradients):
        m, u = update(gradient.reshape(w.shape), m, momentum(step))
        w = w * (1 - rate * decay) - rate * u
        result.append(w.reshape(shape).tolist())
    return result


def muon_cases(random):
    inputs, cases = {}, []
    for name, shape in SHAPES.items():
        gradients = random.standard_normal([STEPS] + shape)
        gradients[2] = 0
        inputs[name] = {"shape": shape, "start": random.standard_normal(shape).tolist(), "gradients": gradients.tolist()}

    def add(preset, name, start_momentum=None, warmup=0, weight_decay=None):
        given = inputs[name]

        def momentum(step):  # modded-nanogpt: linear from the start value over the first `warmup` steps
            if start_momentum is None:
                return 0.95
            frac = min(step / warmup, 1)
            return (1 - frac) * start_momentum + frac * 0.95

        case = {"preset": preset, "input": name, "learning_rate": PRESETS[preset][1],
                "weight_decay": PRESETS[preset][2] if weight_decay is None else weight_decay,
                "momentum_start": start_momentum or 0.95, "momentum_warmup_steps": warmup}
        case["parameters"] = trajectory(preset, np.array(given["start"]), np.array(given["gradients"]), momentum, weight_decay)
        cases.append(case)

    for preset in PRESETS:
        for name in ("tall", "wide", "square"):
            add(preset, name)
    for name in ("row", "column", "convolution"):
        add("keller", name, weight_decay=0.3)
        add("dmuon", name)
    for preset in ("keller", "dmuon"):  # lerp and sum differ once the momentum moves
        add(preset, "tall", 0.85, 3)
        add(preset, "wide", 0.85, 2, 0.5)
    return {"inputs": inputs, "cases": cases}


# ------------------------------------------------------------------------------------------------- torch's optimizers

def torch_cases(random):
    import torch

    gradients = random.standard_normal((5, 3, 4))
    gradients[3] = 0
    start = random.standard_normal((3, 4))

    def run(make):
        parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
        optimizer = make([parameter])
        result = []
        for gradient in gradients:
            parameter.grad = torch.tensor(gradient, dtype=torch.float64)
            optimizer.step()
            result.append(parameter.detach().numpy().tolist())
        return result

    adamw = [dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1),
             dict(learning_rate=3e-3, beta1=0.8, beta2=0.999, epsilon=1e-10, weight_decay=0.0),
             dict(learning_rate=0.1, beta1=0.0, beta2=0.5, epsilon=1e-3, weight_decay=1.0)]
    for case in adamw:
        case["parameters"] = run(lambda p: torch.optim.AdamW(
            p, lr=case["learning_rate"], betas=(case["beta1"], case["beta2"]), eps=case["epsilon"], weight_decay=case["weight_decay"]))
    # Decay 0: torch's SGD couples the decay into the momentum, ours does not.
    sgd = [dict(learning_rate=0.1, momentum=0.0, dampening=0.0, nesterov=False),
           dict(learning_rate=0.05, momentum=0.9, dampening=0.0, nesterov=True),
           dict(learning_rate=0.05, momentum=0.9, dampening=0.3, nesterov=False)]
    for case in sgd:
        case["parameters"] = run(lambda p: torch.optim.SGD(
            p, lr=case["learning_rate"], momentum=case["momentum"], dampening=case["dampening"], nesterov=case["nesterov"]))

    # torch.optim.Muon runs its iteration in bfloat16: within 3 % of its transcription, step by step.
    muon = run(lambda p: torch.optim.Muon(p))
    ours = trajectory("torch", start, gradients, lambda step: 0.95)
    allowed = 0.03 * 1e-3 * 1.3 * np.arange(1, len(ours) + 1)
    difference = [float(np.abs(np.array(a) - np.array(b)).max()) for a, b in zip(muon, ours)]
    assert all(d <= a for d, a in zip(difference, allowed)), difference
    return {"torch": torch.__version__, "start": start.tolist(), "gradients": gradients.tolist(), "adamw": adamw, "sgd": sgd,
            "muon_largest_difference_per_step": difference}


# ---------------------------------------------------------------------------------------------------------- schedules

def rate(kind, warmup, total, decay, shape, final, step):
    """Fraction of the peak at update `step` of 1, 2, ...; see include/dmuon/optim/schedule.h."""
    ramp = warmup if warmup > 0 else 1
    if kind != "constant":
        step = min(step, max(total, 1))
    if step <= ramp:
        return step / ramp
    if kind == "constant":
        return 1.0
    if kind in ("linear", "cosine"):
        progress = (step - ramp) / (total - ramp)
        remaining = 1 - progress if kind == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return final + (1 - final) * remaining
    length = min(decay, total - ramp)
    if length == 0 or step <= total - length:
        return 1.0
    progress = (step - (total - length)) / length
    return final + (1 - final) * (1 - (progress if shape == "linear" else math.sqrt(progress)))


def schedule_cases():
    cases = []
    for kind in ("constant", "linear", "cosine", "warmup_stable_decay"):
        for warmup, total in ((0, 10), (1, 10), (4, 10), (10, 10), (12, 10), (0, 1), (1, 1), (0, 2)):
            for final in (0.0, 0.1):
                for decay, shape in ((3, "linear"), (20, "one_minus_sqrt"), (0, "linear")) if kind == "warmup_stable_decay" else ((0, "linear"),):
                    steps = sorted({1, 2, max(1, warmup - 1), max(1, warmup), warmup + 1, max(1, total - 1), total, total + 5})
                    cases.append({"type": kind, "warmup_steps": warmup, "total_steps": total, "decay_steps": decay, "decay_shape": shape,
                                  "final_fraction": final, "steps": steps,
                                  "fractions": [rate(kind, warmup, total, decay, shape, final, step) for step in steps]})
    return cases


# ------------------------------------------------------------------------------------------------------ restart study

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20260101)
    parser.add_argument("--output", type=pathlib.Path, default=DATA / "optimizer_fixtures.json")
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    fixture = {"origin": f"scripts/make_fixtures.py --seed {arguments.seed}; float64; numpy {np.__version__}",
               "muon": muon_cases(random), "torch": torch_cases(random), "schedules": schedule_cases()}
    arguments.output.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(arguments.output, arguments.output.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
