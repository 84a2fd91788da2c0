"""Estimates of success in several attempts at a task, from how many of its episodes succeeded."""

import math


def pass_at_k(successes: int, episodes: int, k: int) -> float:
    """Unbiased estimate, from one task, that at least one of k episodes succeeds (Chen et al., 2021)."""
    return 1 - math.comb(episodes - successes, k) / math.comb(episodes, k)


def pass_hat_k(successes: int, episodes: int, k: int) -> float:
    """Unbiased estimate, from one task, that all of k episodes succeed (pass^k; Yao et al., 2024)."""
    return math.comb(successes, k) / math.comb(episodes, k)
