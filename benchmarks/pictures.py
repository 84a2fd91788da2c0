"""Curves as SVG, for the pictures in docs/. The same numbers give the same bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

matplotlib.rcParams |= {"svg.hashsalt": "turnbench", "svg.fonttype": "none", "font.family": "sans-serif"}


class Curve(NamedTuple):
    """Points, and how they look. `spread` is half of an interval at each point, drawn as a band."""

    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    colour: str | None = None
    dashed: bool = False


def draw(
    path: Path, name: str, panels: Mapping[str, Mapping[str, Curve]], x: str, y: str, **axes: Any
) -> None:
    """A picture called `name`: panels side by side, each a title and curves by name, one legend for all.

    `axes` are matplotlib's settings of an axis, such as `xscale="log"`. Curves of the same name look
    alike in all panels.
    """
    figure = Figure(figsize=(2.6 + 4.2 * len(panels), 3.6), layout="constrained")
    rows = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    labels = dict.fromkeys(label for curves in panels.values() for label in curves)
    colours = {label: f"C{k}" for k, label in enumerate(labels)}
    shown = {}
    for (title, curves), axis in zip(panels.items(), rows, strict=True):
        for label, curve in curves.items():
            colour, style = curve.colour or colours[label], "--" if curve.dashed else "-"
            shown[label] = axis.plot(curve.x, curve.y, style, color=colour, label=label)[0]
            if len(curve.spread):
                low = [a - b for a, b in zip(curve.y, curve.spread, strict=True)]
                high = [a + b for a, b in zip(curve.y, curve.spread, strict=True)]
                axis.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set(title=title, xlabel=x, **axes)
        axis.grid(color="#dddddd")
        axis.minorticks_off()
    rows[0].set_ylabel(y)
    figure.legend(shown.values(), shown.keys(), loc="outside right center", frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Title": name})
