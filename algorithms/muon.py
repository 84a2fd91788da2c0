"""Muon in float32, all matrices of one shape at a time.

torch.optim.Muon orthogonalises one matrix after another in bfloat16, which a CPU without bfloat16
instructions does some thirty times more slowly than float32.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, Jordan 2024
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Jordan 2024), with steps of AdamW's size (Liu et al. 2025).

    Takes matrices only; raises ValueError for others. `lr` and `weight_decay` mean what they mean to
    AdamW.
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        odd = [p for group in self.param_groups for p in group["params"] if p.ndim != 2]
        if odd:
            raise ValueError(f"Muon takes matrices, not tensors of shape {tuple(odd[0].shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move all parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for params in by_shape.values():
                self._move(params, group)

    def _move(self, params: list[torch.Tensor], group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        updates = []
        for p in params:
            assert p.grad is not None
            state = self.state[p]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(p)
            average = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
            updates.append(p.grad.lerp(average, momentum))
        size = 0.2 * max(params[0].shape) ** 0.5
        for p, direction in zip(params, orthogonal(torch.stack(updates)), strict=True):
            p.mul_(1 - rate * group["weight_decay"])
            p.add_(direction, alpha=-rate * size)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """[n, rows, columns] with all singular values moved to about 1, by Newton-Schulz iterations."""
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonal(matrices.mT).mT
    x: torch.Tensor = matrices / torch.linalg.matrix_norm(matrices, keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x
