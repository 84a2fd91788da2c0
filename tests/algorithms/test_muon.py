"""Muon: what the updates are, against PyTorch's own in bfloat16."""

import pytest
import torch

from turnbench.algorithms.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_the_direction_keeps_the_singular_vectors_and_evens_the_values(shape):
    matrix = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix[0], full_matrices=False)
    inner = u.T @ orthogonal(matrix)[0] @ v.T
    assert torch.allclose(inner, torch.diag(torch.diagonal(inner)), atol=1e-3)
    assert 0.6 < torch.diagonal(inner).min() and torch.diagonal(inner).max() < 1.3


def test_it_steps_as_pytorch_does():
    draw = torch.Generator().manual_seed(0)
    ours = [
        torch.nn.Parameter(torch.randn(*shape, generator=draw)) for shape in [(8, 24), (24, 8), (8, 24)]
    ]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    steppers = (
        Muon(ours, 0.02, 0.1),
        torch.optim.Muon(theirs, 0.02, 0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(*p.shape, generator=draw)
            q.grad = p.grad.clone()
        for stepper in steppers:
            stepper.step()
    for p, q in zip(ours, theirs, strict=True):
        assert (p - q).norm() < 0.01 * p.norm()


def test_it_takes_matrices_only():
    with pytest.raises(ValueError, match=r"\(3,\)"):
        Muon([torch.zeros(3)], 0.1, 0.0)
