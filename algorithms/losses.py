"""Losses: the objectives of objectives.py as a config chooses and adds them up."""

from torch import Tensor

from turnbench.algorithms import objectives
from turnbench.algorithms.batch import Batch
from turnbench.algorithms.common import Common
from turnbench.algorithms.policy import Reading
from turnbench.algorithms.rl import Loss

Told = dict[str, Tensor]


def policy_loss(settings: Common) -> Loss:
    """The loss of the policy: minus the surrogate, plus the price of KL, minus the reward for entropy.

    A batch needs `weight`, `credit` [B, N], and where KL has a price `reference` in its extras.
    """

    def loss(piece: Batch, reading: Reading) -> tuple[Tensor, Told]:
        new, entropy = reading.logprobs, reading.entropy
        assert new is not None and entropy is not None
        weight, credit, mask = piece.extra["weight"], piece.extra["credit"], piece.turns.mask
        ratio = _ratio(settings, piece, new)
        surrogate, cut = _clip(settings, ratio, credit, new)
        total = -(weight * surrogate).sum()
        told = {
            "policy_loss": total,
            "entropy": (weight * entropy).sum(),
            "clip_fraction": (weight * cut).sum(),
            "kl_old": (weight * objectives.kl_estimate(piece.old, new, estimator="k3") * mask).sum(),
        }
        if settings.kl:
            reference = piece.extra["reference"]
            told["kl"] = (weight * objectives.kl_estimate(new, reference, estimator="k3") * mask).sum()
            if settings.kl_estimator != "k1":
                price = objectives.kl_estimate(new, reference, estimator=settings.kl_estimator)
                total = total + settings.kl * (weight * price * mask).sum()
        if settings.entropy:
            total = total - settings.entropy * told["entropy"]
        return total, told

    return loss


def value_loss(piece: Batch, reading: Reading) -> tuple[Tensor, Told]:
    """Half the mean squared error of the values before action tokens; `targets` [B, N] in the extras."""
    assert reading.said is not None
    error = piece.before(reading.said) - piece.extra["targets"]
    total = (piece.extra["weight"] * error.square() / 2).sum()
    return total, {"value_loss": total}


def joint_loss(policy: Loss, value_weight: float) -> Loss:
    """The policy's loss plus `value_weight` times the critic's."""

    def loss(piece: Batch, reading: Reading) -> tuple[Tensor, Told]:
        total, told = policy(piece, reading)
        error, more = value_loss(piece, reading)
        return total + value_weight * error, told | more

    return loss


def _ratio(settings: Common, piece: Batch, new: Tensor) -> Tensor:
    match settings.ratio:
        case "token":
            return objectives.token_ratio(new, piece.old)
        case "turn":
            return objectives.turn_ratio(piece.turns, new, piece.old, form="product")
        case "turn_geomean":
            return objectives.turn_ratio(piece.turns, new, piece.old, form="geomean")
        case "sequence":
            return objectives.sequence_ratio(piece.turns, new, piece.old)


def _clip(settings: Common, ratio: Tensor, credit: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """(surrogate [B, N], whether a token's gradient is taken away [B, N])."""
    low, high = settings.clip_low, settings.clip_high
    if settings.clip == "mask":
        return (
            objectives.masked_ratio(ratio, credit, new, low=low, high=high),
            (ratio <= 1 - low) | (ratio >= 1 + high),
        )
    return (
        objectives.clipped(ratio, credit, low=low, high=high, dual=settings.dual_clip),
        objectives.is_clipped(ratio, credit, low=low, high=high),
    )


def paid(settings: Common, batch: Batch) -> Tensor:
    """[B, K] float64: the turns' rewards, minus the price of KL where that is paid as a reward (k1), and what
    turns near the length limit cost."""
    rewards = batch.rewards
    if settings.kl and settings.kl_estimator == "k1":
        rewards = rewards - settings.kl * batch.turns.sum(
            (batch.old - batch.extra["reference"]).double()
        )
    if cache := settings.overlong_cache:
        limit = settings.play.max_tokens
        rewards = rewards + objectives.overlong(batch.turns.lengths.double(), limit=limit, cache=cache)
    return rewards
