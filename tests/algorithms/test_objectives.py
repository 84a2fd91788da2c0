"""Properties M6-M9, M11 and M13 of the ratios, by autograd and by enumeration."""

import itertools

import pytest
import torch
from torch import Tensor

from turnbench.algorithms import objectives as obj
from turnbench.algorithms.advantages import Turns

FORMS = ("product", "geomean")


@pytest.fixture
def turns() -> Turns:
    index = torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1], [0, -1, 1, 2, 2, 2, 2, -1]])
    return Turns.of(index >= 0, index, 3)


@pytest.fixture
def logs(turns: Turns) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    new = -torch.rand(turns.mask.shape, generator=g, dtype=torch.float64) * 3
    old = new + 0.3 * torch.randn(new.shape, generator=g, dtype=torch.float64)
    return new.requires_grad_(), old


def grad(of: Tensor, new: Tensor) -> Tensor:
    return torch.autograd.grad(of, new, retain_graph=True)[0]


@pytest.mark.parametrize("form", FORMS)
def test_m6_value_is_the_turns_and_gradient_each_tokens_own(
    turns: Turns, logs: tuple[Tensor, Tensor], form: str
) -> None:
    new, old = logs
    ratio = obj.turn_ratio(turns, new, old, form=form)  # type: ignore[arg-type]
    for b, k in turns.valid.nonzero().tolist():
        here = turns.mask[b] & (turns.index[b] == k)
        total = (new - old)[b, here].sum()
        rho = (total if form == "product" else total / here.sum()).exp()
        torch.testing.assert_close(ratio[b, here], rho.expand(int(here.sum())))
    credit = torch.randn(new.shape, dtype=torch.float64)
    got = grad((ratio * credit * turns.mask).sum(), new)
    torch.testing.assert_close(got, (ratio * credit * turns.mask).detach())


@pytest.mark.parametrize("form", FORMS)
def test_m7_without_the_stopped_gradient_refined_credit_cancels(
    turns: Turns, logs: tuple[Tensor, Tensor], form: str
) -> None:
    new, old = logs
    level, noise = torch.randn(2, 3, dtype=torch.float64), torch.randn(new.shape, dtype=torch.float64)
    centred = (noise - turns.to_tokens(turns.mean(noise))) * turns.mask
    coarse, fine = turns.to_tokens(level), turns.to_tokens(level) + centred
    total = turns.sum(new - old)
    plain = turns.to_tokens(total if form == "product" else total / turns.lengths.clamp(min=1)).exp()
    torch.testing.assert_close(
        grad((plain * coarse * turns.mask).sum(), new), grad((plain * fine * turns.mask).sum(), new)
    )
    stopped = obj.turn_ratio(turns, new, old, form=form)  # type: ignore[arg-type]
    apart = grad((stopped * fine * turns.mask).sum(), new) - grad(
        (stopped * coarse * turns.mask).sum(), new
    )
    assert apart.abs().max() > 1e-3


def test_m8_on_policy_every_ratio_gives_the_policy_gradient(
    turns: Turns, logs: tuple[Tensor, Tensor]
) -> None:
    new, _ = logs
    credit = torch.randn(new.shape, dtype=torch.float64) * turns.mask
    want = grad((credit * new).sum(), new)
    ratios = [obj.turn_ratio(turns, new, new.detach(), form=form) for form in FORMS]  # type: ignore[arg-type]
    ratios += [obj.token_ratio(new, new.detach()), obj.sequence_ratio(turns, new, new.detach())]
    for ratio in ratios:
        got = grad(obj.clipped(ratio, credit, low=0.2, high=0.2).sum(), new)
        torch.testing.assert_close(got, want)


def test_m9_product_is_unbiased_and_the_others_are_not() -> None:
    """Enumerates a turn of two tokens over a vocabulary of two, with a value F of the whole turn."""
    first_old, first_new = torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.8])
    second_old = torch.tensor([[0.5, 0.5], [0.7, 0.3]])
    second_new = torch.tensor([[0.1, 0.9], [0.6, 0.4]])
    value = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    turns = Turns.of(torch.ones(1, 2), torch.zeros(1, 2).long(), 1)
    truth = sums = {"product": 0.0, "geomean": 0.0, "token": 0.0}
    truth = 0.0
    for a, b in itertools.product(range(2), range(2)):
        p_old, p_new = first_old[a] * second_old[a, b], first_new[a] * second_new[a, b]
        old = torch.stack([first_old[a], second_old[a, b]]).log()[None]
        new = torch.stack([first_new[a], second_new[a, b]]).log()[None]
        truth += float(p_new * value[a, b])
        for form in FORMS:
            rho = obj.turn_ratio(turns, new, old, form=form)[0, 0]  # type: ignore[arg-type]
            sums[form] += float(p_old * rho * value[a, b])
        sums["token"] += float(p_old * obj.token_ratio(new, old).mean() * value[a, b])
    assert sums["product"] == pytest.approx(truth, abs=1e-6)
    assert abs(sums["geomean"] - truth) > 0.01
    assert abs(sums["token"] - truth) > 0.01


def test_m11_gspo_token_is_gspo_for_equal_advantages(turns: Turns, logs: tuple[Tensor, Tensor]) -> None:
    new, old = logs
    advantage = torch.tensor([[1.3], [-0.4]], dtype=torch.float64)
    count = turns.mask.sum(1)
    sequence = ((new - old) * turns.mask).sum(1) / count
    gspo = (sequence.exp() * advantage[:, 0]).mean()
    weights = obj.token_weights(turns, over="sequence")
    token = (obj.sequence_ratio(turns, new, old) * advantage * weights).sum()
    torch.testing.assert_close(token, gspo)
    torch.testing.assert_close(grad(token, new), grad(gspo, new))


def test_m11_one_turn_with_geomean_is_gspo_token(logs: tuple[Tensor, Tensor]) -> None:
    new, old = logs
    one = Turns.of(torch.ones(new.shape), torch.zeros(new.shape).long(), 1)
    torch.testing.assert_close(
        obj.turn_ratio(one, new, old, form="geomean"), obj.sequence_ratio(one, new, old)
    )


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_m13_saos_mask_cuts_either_sign_and_the_clip_only_one(sign: float) -> None:
    new = torch.tensor([[2.0, -2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    ratio = obj.token_ratio(new, torch.zeros(1, 3, dtype=torch.float64))
    credit = torch.full((1, 3), sign, dtype=torch.float64)
    sao = grad(obj.masked_ratio(ratio, credit, new, low=0.5, high=0.5).sum(), new)[0]
    assert sao[0] == sao[1] == 0
    assert sao[2].item() == pytest.approx(sign * ratio[0, 2].item())
    ppo = grad(obj.clipped(ratio, credit, low=0.5, high=0.5).sum(), new)[0]
    kept = 1 if sign > 0 else 0
    assert ppo[kept] != 0 and ppo[1 - kept] == 0


def test_dual_clip_bounds_a_bad_action_of_large_ratio() -> None:
    got = obj.clipped(torch.tensor([50.0]), torch.tensor([-1.0]), low=0.2, high=0.2, dual=3.0)
    assert got.item() == -3.0
    assert (
        obj.clipped(torch.tensor([1.0]), torch.tensor([-1.0]), low=0.2, high=0.2, dual=3.0).item()
        == -1.0
    )


def test_clipped_tokens_are_those_without_gradient(turns: Turns, logs: tuple[Tensor, Tensor]) -> None:
    new, old = logs
    credit = torch.randn(new.shape, dtype=torch.float64)
    ratio = obj.token_ratio(new, old)
    kept = grad((obj.clipped(ratio, credit, low=0.2, high=0.2) * turns.mask).sum(), new) != 0
    cut = obj.is_clipped(ratio, credit, low=0.2, high=0.2)
    assert torch.equal(cut[turns.mask], ~kept[turns.mask]) and cut.any()


def test_kl_estimators_by_enumeration() -> None:
    p, q = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.4, 0.4, 0.2])
    exact = float((p * (p / q).log()).sum())
    for name in ("k1", "k3"):
        got = float((p * obj.kl_estimate(p.log(), q.log(), estimator=name)).sum())  # type: ignore[arg-type]
        assert got == pytest.approx(exact, abs=1e-6)
    assert (obj.kl_estimate(p.log(), q.log(), estimator="k3") >= 0).all()
    near = q * (1 + 1e-3 * torch.tensor([1.0, -1.0, 0.0]))
    near /= near.sum()
    k2 = float((near * obj.kl_estimate(near.log(), q.log(), estimator="k2")).sum())
    assert k2 == pytest.approx(float((near * (near / q).log()).sum()), rel=0.05, abs=1e-7)


def test_weights_are_those_of_means_over_tokens_turns_and_sequences(turns: Turns) -> None:
    x = torch.arange(16, dtype=torch.float64).reshape(2, 8)

    def mean(over: str) -> float:
        return (x * obj.token_weights(turns, over=over)).sum().item()  # type: ignore[arg-type]

    assert mean("token") == pytest.approx(x[turns.mask].mean().item())
    per_turn = turns.mean(x)[turns.valid]
    assert mean("turn") == pytest.approx(per_turn.mean().item())
    rows = [x[b][turns.mask[b]].mean().item() for b in range(2)]
    assert mean("sequence") == pytest.approx(sum(rows) / 2)
    with pytest.raises(ValueError, match="token, turn or sequence"):
        obj.token_weights(turns, over="word")  # type: ignore[arg-type]


def test_overlong_is_zero_then_linear_then_minus_one():
    lengths = torch.tensor([0.0, 12, 16, 17, 18, 20, 23])
    found = obj.overlong(lengths, limit=20, cache=4)
    assert found.tolist() == [0, 0, 0, -0.25, -0.5, -1, -1]
