"""Properties M1-M5, M10 and M12 of the multiscale estimate, and its relatives against plain loops."""

import math

import pytest
import torch
from torch import Tensor

from turnbench.algorithms import advantages as adv
from turnbench.algorithms.advantages import Turns

torch.manual_seed(0)
BOUNDARIES = ("bootstrap", "afterstate", "drop")


class Case:
    """Random trajectories: turns of random length, with observation tokens before and between."""

    def __init__(self, seed: int, batch: int = 5, turns: int = 6, longest: int = 7) -> None:
        g = torch.Generator().manual_seed(seed)

        def rand(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        rows = []
        for b in range(batch):
            row: list[int] = []
            for k in range(1 + (b * 3 + seed) % turns):
                row += [-1] * int(torch.randint(0, 4, (), generator=g))
                row += [k] * int(torch.randint(1, longest, (), generator=g))
            rows.append(row + [-1] * int(torch.randint(0, 3, (), generator=g)))
        width = max(map(len, rows))
        index = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
        self.turns = Turns.of(index >= 0, index, turns)
        self.rewards = rand(batch, turns) * self.turns.valid
        self.values = rand(batch, width)
        self.bootstrap = rand(batch) * (torch.arange(batch) % 2)
        self.after = rand(batch, turns)

    @property
    def args(self) -> tuple[Turns, Tensor, Tensor, Tensor]:
        return self.turns, self.rewards, self.values, self.bootstrap

    def multiscale(self, boundary: str, **kw: float) -> Tensor:
        return adv.multiscale(*self.args, boundary=boundary, after=self.after, **kw)  # type: ignore[arg-type]


@pytest.fixture(params=range(4))
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def tokens_of(turns: Turns, b: int, k: int) -> list[int]:
    return [t for t in range(turns.mask.shape[1]) if turns.mask[b, t] and turns.index[b, t] == k]


def one_token_turns(case: Case) -> tuple[Turns, Tensor, Tensor, Tensor]:
    turns = Turns.of(case.turns.starts, case.turns.index, case.rewards.shape[1])
    return turns, case.rewards, case.values, case.bootstrap


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_suffix_scan_is_the_recursion(size: int) -> None:
    x, c = torch.randn(3, size, dtype=torch.float64), torch.rand(3, size, dtype=torch.float64)
    want = torch.zeros(3, size + 1, dtype=torch.float64)
    for t in reversed(range(size)):
        want[:, t] = x[:, t] + c[:, t] * want[:, t + 1]
    torch.testing.assert_close(adv.suffix_scan(x, c), want[:, :-1])


def test_layout(case: Case) -> None:
    turns = case.turns
    for b in range(len(turns.mask)):
        for k in range(turns.valid.shape[1]):
            tokens = tokens_of(turns, b, k)
            assert turns.lengths[b, k] == len(tokens)
            assert turns.valid[b, k] == bool(tokens)
            assert [t for t in tokens if turns.starts[b, t]] == tokens[:1]
            assert [t for t in tokens if turns.ends[b, t]] == tokens[-1:]
    assert not (turns.starts | turns.ends)[~turns.mask].any()


def test_a_turn_without_tokens_in_the_middle_is_refused() -> None:
    index = torch.tensor([[0, 2]])
    with pytest.raises(ValueError, match="without action tokens"):
        Turns.of(torch.ones(1, 2), index, 3)


def test_a_trajectory_without_actions_gets_zeros() -> None:
    turns = Turns.of(torch.zeros(2, 3), torch.zeros(2, 3).long(), 2)
    args = turns, torch.ones(2, 2), torch.ones(2, 3), torch.ones(2)
    assert adv.multiscale(*args).abs().sum() == 0
    assert adv.token_gae(*args, gamma=1, lam=1).abs().sum() == 0


def test_token_gae_is_the_loop(case: Case) -> None:
    turns, rewards, values, bootstrap = case.args
    got = adv.token_gae(*case.args, gamma=0.9, lam=0.8)
    for b in range(len(values)):
        tokens = [t for t in range(values.shape[1]) if turns.mask[b, t]]
        ahead, value = 0.0, float(bootstrap[b])
        for t in reversed(tokens):
            reward = float(rewards[b, turns.index[b, t]]) if turns.ends[b, t] else 0.0
            ahead = reward + 0.9 * value - float(values[b, t]) + 0.9 * 0.8 * ahead
            value = float(values[b, t])
            assert got[b, t].item() == pytest.approx(ahead)
    assert got[~turns.mask].abs().sum() == 0


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("lam_token", [0.0, 0.9, 1.0])
def test_m1_mean_over_a_turn_is_the_turns_advantage(
    case: Case, boundary: str, beta: float, lam_token: float
) -> None:
    got = case.multiscale(boundary, beta=beta, lam_token=lam_token, lam_turn=0.7, gamma_turn=0.9)
    want = adv.turn_gae(*case.args, gamma=0.9, lam=0.7)
    torch.testing.assert_close(case.turns.mean(got), want)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_m2_it_is_the_projection_of_the_trace(case: Case, boundary: str) -> None:
    kw = {"gamma_turn": 1.0, "gamma_token": 1.0, "lam_token": 0.9}
    trace = adv.turn_residuals(*case.args, boundary=boundary, after=case.after, **kw)  # type: ignore[arg-type]
    got = case.multiscale(boundary, beta=0.5)
    for b, k in case.turns.valid.nonzero().tolist():
        tokens = tokens_of(case.turns, b, k)
        here, target = got[b, tokens], 0.5 * trace[b, tokens]
        for _ in range(5):
            step = torch.randn(len(tokens), dtype=torch.float64)
            step -= step.mean()
            assert (here - target).norm() <= (here + step - target).norm() + 1e-9


def test_m2_a_constant_added_to_the_trace_changes_nothing(case: Case) -> None:
    """A constant added to the reward and to the turn's values moves every token's trace alike."""
    base = case.multiscale("bootstrap", lam_token=1.0) - case.turns.to_tokens(
        adv.turn_gae(*case.args, gamma=1.0, lam=0.95)
    )
    rewards = case.rewards + 5.0 * case.turns.valid
    args = case.turns, rewards, case.values, case.bootstrap
    moved = adv.multiscale(*args, lam_token=1.0) - case.turns.to_tokens(
        adv.turn_gae(*args, gamma=1.0, lam=0.95)
    )
    torch.testing.assert_close(base, moved)


def test_m3_length_of_a_turn_does_not_change_turn_advantages() -> None:
    def level(lengths: list[int]) -> Tensor:
        index = torch.tensor([[k for k, n in enumerate(lengths) for _ in range(n)]])
        turns = Turns.of(index >= 0, index, len(lengths))
        starts = torch.arange(1.0, len(lengths) + 1)
        values = torch.where(turns.starts, turns.to_tokens(starts[None]), torch.randn(index.shape))
        return adv.turn_gae(
            turns, torch.tensor([[0.0, 0.0, 1.0]]), values, torch.zeros(1), gamma=0.9, lam=0.8
        )

    torch.testing.assert_close(level([1, 1, 1]), level([50, 3, 200]))


def test_m3_weight_of_the_last_error_on_the_first_turn() -> None:
    turns_count, length = 8, 200
    index = torch.arange(turns_count).repeat_interleave(length)[None]
    turns = Turns.of(index >= 0, index, turns_count)
    rewards = torch.zeros(1, turns_count, dtype=torch.float64)
    rewards[0, -1] = 1.0
    values, zero = torch.zeros(index.shape, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    level = adv.turn_gae(turns, rewards, values, zero, gamma=1.0, lam=0.95)
    token = adv.token_gae(turns, rewards, values, zero, gamma=1.0, lam=0.95)
    assert level[0, 0].item() == pytest.approx(0.95**7)
    assert token[0, 0].item() == pytest.approx(0.95**1599, rel=1e-6)


def test_m4_limits_of_lambda(case: Case) -> None:
    turns, rewards, values, bootstrap = case.args
    starts = turns.at_starts(values)
    to_go = adv.suffix_scan(rewards, torch.ones_like(rewards)) + bootstrap[:, None]
    full = adv.turn_gae(*case.args, gamma=1.0, lam=1.0)
    torch.testing.assert_close(full, (to_go - starts) * turns.valid)
    one_step = adv.turn_gae(*case.args, gamma=1.0, lam=0.0)
    torch.testing.assert_close(one_step, adv.turn_deltas(*case.args, gamma=1.0))


def test_m4_single_turn() -> None:
    turns = Turns.of(torch.ones(1, 4), torch.zeros(1, 4).long(), 1)
    values = torch.tensor([[0.3, 9.0, 9.0, 9.0]])
    got = adv.turn_gae(turns, torch.tensor([[1.0]]), values, torch.zeros(1), gamma=1.0, lam=0.5)
    assert got.item() == pytest.approx(0.7)


def test_m5_token_errors_of_a_turn_add_up_to_its_turn_error(case: Case) -> None:
    errors = adv.turn_residuals(*case.args, gamma_turn=1.0, gamma_token=1.0, lam_token=0.0)
    torch.testing.assert_close(case.turns.sum(errors), adv.turn_deltas(*case.args, gamma=1.0))


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_m5_one_token_a_turn_makes_all_estimates_one(case: Case, beta: float) -> None:
    args = one_token_turns(case)
    level = args[0].to_tokens(adv.turn_gae(*args, gamma=0.9, lam=0.8))
    torch.testing.assert_close(adv.multiscale(*args, gamma_turn=0.9, lam_turn=0.8, beta=beta), level)
    torch.testing.assert_close(adv.token_gae(*args, gamma=0.9, lam=0.8), level)


def test_m10_between_and_within_make_the_whole(case: Case) -> None:
    turns, values = case.turns, case.values
    share = adv.between_turn_share(turns, values)
    for b in range(len(values)):
        v = values[b][turns.mask[b]]
        groups = [values[b, tokens_of(turns, b, k)] for k in turns.valid[b].nonzero().flatten().tolist()]
        between = sum(len(g) * float(g.mean() - v.mean()) ** 2 for g in groups)
        within = sum(float((g - g.mean()).square().sum()) for g in groups)
        total = float((v - v.mean()).square().sum())
        assert between + within == pytest.approx(total)
        if total > 0:
            assert share[b].item() == pytest.approx(between / total)
        else:
            assert math.isnan(share[b])


def test_m10_values_constant_inside_turns(case: Case) -> None:
    per_turn = torch.randn(case.rewards.shape, dtype=torch.float64)
    share = adv.between_turn_share(case.turns, case.turns.to_tokens(per_turn))
    several = case.turns.valid.sum(1) > 1
    torch.testing.assert_close(share[several], torch.ones_like(share[several]))


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_m12_observation_tokens_do_not_matter(case: Case, boundary: str) -> None:
    before = case.multiscale(boundary)
    noise = torch.randn_like(case.values) * 100
    case.values = torch.where(case.turns.mask, case.values, noise)
    torch.testing.assert_close(case.multiscale(boundary), before)


def test_m12_a_truncated_episode_bootstraps() -> None:
    turns = Turns.of(torch.ones(2, 2), torch.zeros(2, 2).long(), 1)
    values, rewards = torch.zeros(2, 2), torch.zeros(2, 1)
    got = adv.turn_gae(turns, rewards, values, torch.tensor([0.0, 0.6]), gamma=0.5, lam=1.0)
    torch.testing.assert_close(got, torch.tensor([[0.0], [0.3]]))


def test_unknown_boundary_and_missing_afterstate(case: Case) -> None:
    with pytest.raises(ValueError, match="bootstrap, afterstate"):
        adv.multiscale(*case.args, boundary="afterstate")
    with pytest.raises(ValueError, match="nowhere"):
        adv.multiscale(*case.args, boundary="nowhere")  # type: ignore[arg-type]


def test_bilevel_is_the_loop_and_keeps_no_mean(case: Case) -> None:
    turns, rewards, values, _ = case.args
    got = adv.bilevel(
        turns, rewards, values, gamma_turn=0.95, lam_turn=0.9, gamma_token=0.8, lam_token=0.7
    )
    for b in range(len(values)):
        level, end_value = 0.0, 0.0
        for k in reversed(turns.valid[b].nonzero().flatten().tolist()):
            tokens = tokens_of(turns, b, k)
            here = float(values[b, tokens[-1]])
            level = float(rewards[b, k]) + 0.95 * end_value - here + 0.95 * 0.9 * level
            end_value, credit = here, level
            assert got[b, tokens[-1]].item() == pytest.approx(credit)
            for t, after in zip(tokens[-2::-1], tokens[:0:-1], strict=True):
                credit = 0.8 * float(values[b, after]) - float(values[b, t]) + 0.8 * 0.7 * credit
                assert got[b, t].item() == pytest.approx(credit)
    several = turns.lengths > 1
    assert (turns.mean(got) - turns.at_ends(got))[several].abs().max() > 1e-3


def test_group_relative_by_hand() -> None:
    returns = torch.tensor([1.0, 0.0, 0.0, 5.0, 2.0, 2.0], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 2, 2])
    got = adv.group_relative(returns, groups)
    deviation = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).std().item() + 1e-6
    want = [(2 / 3) / deviation, (-1 / 3) / deviation, (-1 / 3) / deviation, 0.0, 0.0, 0.0]
    assert got.tolist() == pytest.approx(want)
    unscaled = adv.group_relative(returns, groups, scale=False)
    assert unscaled.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_returns_teach_exactly_nothing(dtype: torch.dtype) -> None:
    """The mean of three times 0.1 is not 0.1; divided by a deviation of nearly 0 that would count."""
    returns = torch.full((7,), 0.1, dtype=dtype)
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    for scale in (True, False):
        assert not adv.group_relative(returns, groups, scale=scale).any()
    assert adv.group_relative(returns[:0], groups[:0]).shape == (0,)


def test_turn_group_relative_compares_equal_anchors_only() -> None:
    index = torch.tensor([[0, 1], [0, 1]])
    turns = Turns.of(index >= 0, index, 2)
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    anchors = torch.tensor([[0, 1], [0, 2]])
    got = adv.turn_group_relative(turns, rewards, anchors, gamma=0.5, scale=False)
    assert got.tolist() == [[0.25, 0.0], [-0.25, 0.0]]


def test_turn_targets_with_lambda_1_are_returns_to_go(case: Case) -> None:
    turns, rewards, _, bootstrap = case.args
    got = adv.turn_targets(*case.args, gamma=1.0, lam=1.0)
    to_go = adv.suffix_scan(rewards, torch.ones_like(rewards)) + bootstrap[:, None]
    torch.testing.assert_close(got, turns.to_tokens(to_go))


def test_whitening_is_one_affine_map(case: Case) -> None:
    raw = case.multiscale("bootstrap")
    white = adv.whiten(raw, case.turns.mask)
    chosen = white[case.turns.mask]
    assert chosen.mean().item() == pytest.approx(0, abs=1e-9)
    assert chosen.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    level = case.turns.mean(raw)[case.turns.valid]
    white_level = case.turns.mean(white)[case.turns.valid]
    order = level.argsort()
    assert (white_level[order].diff() >= -1e-12).all()
