"""The loop that fits networks to rollouts: every step moves, and the right epoch is kept."""

from pathlib import Path
from typing import Any

import pytest
import torch

from turnbench.algorithms.fitting import Fitted, Fitting, fit
from turnbench.envs.errors import ConfigError


def run(
    tmp_path: Path, told: list[dict[str, Any]], loss: Any = None, **changes: Any
) -> tuple[Fitted, list[float], torch.nn.Linear]:
    """A weight that is pulled up by a step each epoch, measured as `told` says; also its value after each."""
    network, seen = torch.nn.Linear(1, 1, bias=False), []
    torch.nn.init.zeros_(network.weight)
    settings = Fitting(
        env="e", rollouts=tmp_path, **{"epochs": len(told), "batch": 4, "lr": 0.1, **changes}
    )

    def measure() -> dict[str, Any]:
        seen.append(network.weight.item())
        return told[len(seen) - 1]

    fitted = fit(
        network,
        [1.0] * 4,
        settings,
        tmp_path,
        loss=loss or (lambda batch: -network.weight.sum()),
        tokens=lambda one: 1,
        measure=measure,
        better=("a", "b"),
    )
    return fitted, seen, network


def figures(*pairs: tuple[float | None, float | None]) -> list[dict[str, Any]]:
    return [{"a": a, "b": b} for a, b in pairs]


def test_the_only_step_moves(tmp_path: Path) -> None:
    """Its rate is neither the 0 before the rise nor the 0 after the fall."""
    _, seen, _ = run(tmp_path, figures((1.0, 1.0)))
    assert seen[0] > 0


@pytest.mark.parametrize(
    ("told", "want"),
    [
        (figures((0.5, 0.1), (0.9, 0.0), (0.7, 0.9)), Fitted(3, 2)),
        (figures((0.5, 0.1), (0.5, 0.2), (0.5, 0.1)), Fitted(3, 2)),
        (figures((0.5, 0.1), (0.5, 0.1)), Fitted(2, 2)),
        (figures((None, None), (None, None), (None, None), (None, None)), Fitted(4, 4)),
        (figures((None, None), (-0.5, None), (None, 0.9)), Fitted(3, 2)),
        (figures((0.9, 0.0), (0.8, 0.0), (0.7, 0.0), (1.0, 0.0)), Fitted(3, 1)),
    ],
)
def test_the_best_epoch_is_kept(tmp_path: Path, told: list[dict[str, Any]], want: Fitted) -> None:
    """By the first figure, then the second; of equals the later one; the last where nothing is told."""
    fitted, seen, network = run(tmp_path, told)
    assert fitted == want
    assert network.weight.item() == seen[want.kept - 1]


def test_a_loss_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the loss is nan: lower lr"):
        run(tmp_path, figures((1.0, 1.0)), loss=lambda batch: torch.tensor(float("nan")))
