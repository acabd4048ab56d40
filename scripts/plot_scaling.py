#!/usr/bin/env python3
"""Draws the optimizer times that dmuon_plan --plot wrote, beside the published ones.

    dmuon_plan --inventory configs/inventories/wall-oss-0.5.json --hardware configs/hardware/a800.json \\
        --ranks 8,16,32,64,128,256 --window-units 1000 --plot wall-oss.tsv
    scripts/plot_scaling.py --output docs/images/scaling_a800.svg wall-oss.tsv qwen.tsv
"""
import argparse
import collections
import csv
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

# DMuon paper (arXiv 2606.27153), optimizer milliseconds: model -> method -> GPUs -> value.
PUBLISHED = {
    "Wall-OSS-0.5": {"owner": {256: 18}, "gather": {256: 1977}},
    "Qwen2.5-7B": {"owner": {256: 22}, "gather": {256: 3604}},
    "Pi0": {"owner": {256: 14}, "gather": {256: 1308}},
    "Wall-WM": {"owner": {256: 64}, "gather": {256: 6265}},
}
COLORS = {"adamw": "#7f7f7f", "gather": "#c0504d", "owner": "#4c6a92"}
LABELS = {"adamw": "AdamW", "gather": "gather", "owner": "owner"}


def read(path):
    curves, mean, model = collections.defaultdict(dict), {}, None
    with open(path, newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            model = row["model"]
            curves[row["method"]][int(row["ranks"])] = 1e3 * float(row["optimizer_seconds"])
            if row["method"] == "owner":
                mean[int(row["ranks"])] = 1e3 * float(row["mean_rank_seconds"])
    return model, curves, mean


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True)
    parser.add_argument("files", nargs="+", metavar="TSV")
    arguments = parser.parse_args()
    matplotlib.rcParams.update({"svg.hashsalt": "dmuon", "svg.fonttype": "none"})  # the same data gives the same file
    figure, panels = pyplot.subplots(1, len(arguments.files), figsize=(4.6 * len(arguments.files), 3.9), sharey=True, squeeze=False)
    for axes, path in zip(panels[0], arguments.files):
        model, curves, mean = read(path)
        for method in ("gather", "adamw", "owner"):
            ranks = sorted(curves[method])
            axes.plot(ranks, [curves[method][r] for r in ranks], color=COLORS[method], marker="o", markersize=3, label=LABELS[method])
        axes.plot(sorted(mean), [mean[r] for r in sorted(mean)], color=COLORS["owner"], linestyle=":", label="owner, mean of the ranks")
        for method, points in PUBLISHED.get(model, {}).items():
            axes.plot(list(points), list(points.values()), color=COLORS[method], marker="*", markersize=12, linestyle="none", label=f"{method}, published")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted(curves["owner"]), [str(r) for r in sorted(curves["owner"])])
        axes.set_xlabel("A800 GPUs, 8 a node")
        axes.set_title(model, fontsize=10)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("optimizer time, ms")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    pathlib.Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, metadata={"Date": None} if arguments.output.endswith(".svg") else None)


if __name__ == "__main__":
    main()
