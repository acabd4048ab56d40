#!/usr/bin/env python3
"""Tables and plots of the runs of scripts/sign_muon_quality.sh (matplotlib, from PyPI, for --plots; for development only).

  scripts/sign_muon_quality.py runs/sign_quality_small
  scripts/sign_muon_quality.py runs/sign_quality_small --plots docs/images --prefix sign_small --title "..."

Prints one Markdown row per arm: validation loss at the end, mean of the seeds and their range. Then whether the ordering that
the method promises holds. Curves: over steps, over bytes that a rank sent, and the smallest loss so far over wall-clock.
"""
import argparse
import collections
import json
import pathlib
import statistics

# Of SignSGD and SignAdam, the best of the rates that were tried (best_of).
CURVES = [("sign_muon", "Sign-Muon"), ("muon", "Muon"), ("signsgd", "SignSGD"), ("sign_adam", "SignAdam"), ("adamw", "AdamW"),
          ("sign_muon_auxiliary_signum", "Sign-Muon, everything one bit")]
COLORS = ["#c0504d", "#4c6a92", "#5f8f4e", "#8064a2", "#d08a2e", "#7f3634"]


class Run:
    """Evaluated steps of one run: loss, and bytes of a rank since the start. The median step in seconds."""

    def __init__(self, folder):
        self.steps, self.losses, self.megabytes = [], [], []
        self.diagnostics = {}
        last = bytes_sent = 0
        lines = [json.loads(text) for text in (folder / "metrics.jsonl").open()]
        # Of the steps that were logged: the others had no other work, and a busy machine disturbs single ones.
        self.step_seconds = statistics.median(line["step_seconds"] for line in lines)
        for line in lines:
            bytes_sent += line["bytes_sent"] * (line["step"] - last)  # the steps since the line before sent as much each
            last = line["step"]
            if line.get("validation_loss") is None:
                continue
            self.steps.append(line["step"])
            self.losses.append(line["validation_loss"])
            self.megabytes.append(bytes_sent * 1e-6)
            self.diagnostics = {key: value for key, value in line.items() if key.startswith("vote_")}


def load(folder):
    arms = collections.defaultdict(dict)
    for run in sorted(folder.iterdir()):
        if (run / "finished").exists():
            arm, seed = run.name.rsplit("_", 1)
            arms[arm][seed] = Run(run)
    return arms


def final(arms, arm):
    return statistics.mean(run.losses[-1] for run in arms[arm].values())


def table(arms):
    rows = ["| arm | seeds | validation loss | range | MB sent by a rank |", "|---|---|---|---|---|"]
    for arm, runs in sorted(arms.items(), key=lambda item: final(arms, item[0])):
        losses = [run.losses[-1] for run in runs.values()]
        span = f"{min(losses):.3f}–{max(losses):.3f}" if len(losses) > 1 else ""
        sent = statistics.mean(run.megabytes[-1] for run in runs.values())
        rows.append(f"| {arm} | {len(losses)} | {statistics.mean(losses):.3f} | {span} | {sent:.1f} |")
    return rows


def best_of(arms, method):
    """The arm of `method`, whichever learning rate its name ends with, that learned best."""
    return min((arm for arm in arms if arm == method or arm.startswith(method + "_")), key=lambda arm: final(arms, arm), default=method)


def bars(arms):
    """(claim, difference, bound, holds) of every bar whose arms are there; the best of the rates tried counts for SignSGD and SignAdam."""
    rows = []

    def bar(claim, needed, difference, holds):
        if all(arm in arms for arm in needed):
            value = difference()
            rows.append(f"| {claim} | {value:+.3f} | {'holds' if holds(value) else 'DOES NOT HOLD'} |")

    for method, title in (("signsgd", "SignSGD"), ("sign_adam", "SignAdam")):
        arm = best_of(arms, method)
        bar(f"{title} ({arm}) − Sign-Muon ≥ 0.10", ["sign_muon", arm],
            lambda: final(arms, arm) - final(arms, "sign_muon"), lambda value: value >= 0.10)
    bar("Sign-Muon − Muon within 0.08", ["sign_muon", "muon"],
        lambda: final(arms, "sign_muon") - final(arms, "muon"), lambda value: abs(value) <= 0.08)
    bar("1 worker − 4 workers ≥ 0.15", ["sign_muon", "sign_muon_m1"],
        lambda: final(arms, "sign_muon_m1") - final(arms, "sign_muon"), lambda value: value >= 0.15)
    return ["| claim | difference | |", "|---|---|---|"] + rows if rows else []


def mean_curve(runs, x_of, y_of):
    count = min(len(run.steps) for run in runs)
    average = lambda of: [statistics.mean(of(run)[i] for run in runs) for i in range(count)]
    return average(x_of), average(y_of), [min(y_of(run)[i] for run in runs) for i in range(count)], [max(y_of(run)[i] for run in runs) for i in range(count)]


def running_minimum(values):
    smallest, out = float("inf"), []
    for value in values:
        smallest = min(smallest, value)
        out.append(smallest)
    return out


def plots(arms, folder, prefix, title):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    views = [("steps", "step", lambda run: run.steps, lambda run: run.losses, "linear"),
             ("bytes", "MB that a rank has sent", lambda run: run.megabytes, lambda run: run.losses, "log"),
             ("seconds", "seconds (steps × median step)", None, lambda run: running_minimum(run.losses), "linear")]
    for name, label, x_of, y_of, scale in views:
        figure, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=120)
        for (arm, method), color in zip(CURVES, COLORS):
            if method in ("SignSGD", "SignAdam"):
                arm = best_of(arms, arm)
            if arm not in arms:
                continue
            runs = list(arms[arm].values())
            # All seeds of an arm do the same work: the run that was disturbed least says how long it takes.
            seconds = min(run.step_seconds for run in runs)
            x, y, low, high = mean_curve(runs, x_of or (lambda run: [step * seconds for step in run.steps]), y_of)
            axes.plot(x, y, color=color, marker="o", markersize=3, label=f"{method}: {y[-1]:.3f}")
            axes.fill_between(x, low, high, color=color, alpha=0.2)
        axes.set_xscale(scale)
        axes.set_xlabel(label)
        axes.set_ylabel("smallest validation loss so far" if name == "seconds" else "validation loss (mean, range of the seeds)")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{prefix}_{name}.png")
        pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("--plots", type=pathlib.Path, help="folder for PNG files")
    parser.add_argument("--prefix", default="sign_small")
    parser.add_argument("--title", default="Tiny Shakespeare, characters: 2 layers, 96 wide, 4 workers of 256 tokens a step")
    arguments = parser.parse_args()
    arms = load(arguments.runs)
    if not arms:
        raise SystemExit(f"no finished runs in {arguments.runs}; make some with scripts/sign_muon_quality.sh")
    print("\n".join(table(arms)), "\n", *bars(arms), sep="\n")
    for arm in ("sign_muon", "signsgd_1e-3"):
        for seed, run in arms.get(arm, {}).items():
            if run.diagnostics:
                print(f"\n{arm}, seed {seed}, last step:", ", ".join(f"{key} {value}" for key, value in run.diagnostics.items()))
    if arguments.plots:
        plots(arms, arguments.plots, arguments.prefix, arguments.title)


if __name__ == "__main__":
    main()
