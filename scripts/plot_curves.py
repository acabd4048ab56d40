#!/usr/bin/env python3
"""Draws the validation curves of several runs, one band per group of seeds (matplotlib, from PyPI; for development only).

  scripts/plot_curves.py --output docs/images/shakespeare_cpu.png AdamW=runs/a1,runs/a2,runs/a3 Muon=runs/m1,runs/m2,runs/m3
"""
import argparse
import json
import pathlib
import statistics

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def validation_curve(run):
    lines = (json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").open())
    return {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True)
    parser.add_argument("--title", default="Tiny Shakespeare, characters: 4 layers, 128 wide, 768 tokens a step")
    parser.add_argument("groups", nargs="+", metavar="LABEL=RUN,RUN,...")
    arguments = parser.parse_args()
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=120)
    for group, color in zip(arguments.groups, ["#4c6a92", "#c0504d", "#5f8f4e", "#8064a2"]):
        label, runs = group.split("=", 1)
        curves = [validation_curve(run) for run in runs.split(",")]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        means = [statistics.mean(curve[step] for curve in curves) for step in steps]
        axes.plot(steps, means, color=color, marker="o", markersize=3, label=f"{label}: {means[-1]:.3f}")
        axes.fill_between(steps, [min(c[s] for c in curves) for s in steps], [max(c[s] for c in curves) for s in steps], color=color, alpha=0.2)
        print(label, " ".join(f"{step}:{mean:.4f}" for step, mean in zip(steps, means)))
    axes.set_xlabel("step")
    axes.set_ylabel("validation loss (mean and range of the seeds)")
    axes.set_title(arguments.title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    pathlib.Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output)


if __name__ == "__main__":
    main()
