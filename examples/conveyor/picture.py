"""Draws a figure of the example's result files."""

import numpy as np


def draw(plt, contents):
    """Draws the contents of the result files, one for each delay. Returns the figure, which shows the ages of frames and the
    distribution of each arm's distances."""
    figure, (ages, *panels) = plt.subplots(
        1, 1 + len(contents), figsize=(3.6 * (1 + len(contents)), 3.2), layout="constrained"
    )
    for number, content in enumerate(contents):
        counts = dict.fromkeys(range(0, 200, 10), 0)
        for age, count in content["frame_age_ms"].items():
            counts[min(int(age) // 10 * 10, 190)] += count
        shares = [100 * count / sum(counts.values()) for count in counts.values()]
        ages.step(
            [age + 10 for age in counts],
            shares,
            where="pre",
            color=f"C{3 + number}",
            label=f"mean delay {content['delay_ms']} ms",
        )
    ages.set(
        xlabel="age of the newest frame when the policy acts, ms", ylabel="% of frames", xlim=(0, 200), ylim=(0, None)
    )
    ages.legend(frameon=False)
    for axes, content in zip(panels, contents, strict=True):
        for color, name in enumerate(dict.fromkeys(arm["name"] for arm in content["arms"])):
            runs = [arm for arm in content["arms"] if arm["name"] == name]
            distances = [int(mm) for mm in runs[0]["within_mm"]]
            shares = [[100 * count / run["rollouts"] for count in run["within_mm"].values()] for run in runs]
            lowest, highest = zip(*((min(column), max(column)) for column in zip(*shares, strict=True)), strict=True)
            axes.fill_between(distances, lowest, highest, color=f"C{color}", alpha=0.2, linewidth=0)
            axes.plot(distances, np.mean(shares, 0), color=f"C{color}", label=name)
        axes.axvline(content["near_mm"], color="0.6", linestyle=":")
        axes.set(
            xlabel=f"tip to part, mm, at {content['delay_ms']} ms",
            ylabel="% of rollouts that come closer",
            ylim=(0, 102),
            xlim=(1, 12),
        )
    panels[0].legend(frameon=False)
    for axes in (ages, *panels):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
