"""Credit where everything is known: the toy world, its actions spelled in two tokens, every path listed.

With the true values as critic, the expected gradient of each estimate is compared with the gradient of
the expected return itself.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from turnbench.algorithms import advantages as adv
from turnbench.algorithms.advantages import Turns
from turnbench.algorithms.objectives import clipped, token_ratio, turn_ratio
from turnbench.envs.toy import ToyMDP, enumerate_paths, values

HORIZON, STATES = 3, 3


class World:
    """All paths of a random world under a random policy over two-token actions (action = 2 y1 + y2).

    `first` [H, S, 2] and `second` [H, S, 2, 2] are logits. Tensors over paths: `prob` [P], `turns`,
    `rewards` [P, K], `values` [P, 2 K] (exact, before each token), `ret` [P].
    """

    def __init__(self, seed: int, stochastic: bool) -> None:
        rng = np.random.default_rng(seed)
        mdp = ToyMDP.random(rng, states=STATES, actions=4, horizon=HORIZON, deterministic=not stochastic)
        self.first = torch.tensor(rng.normal(size=(HORIZON, STATES, 2)), requires_grad=True)
        self.second = torch.tensor(rng.normal(size=(HORIZON, STATES, 2, 2)), requires_grad=True)
        with torch.no_grad():
            first, second = self.first.softmax(-1), self.second.softmax(-1)
            policy = (first[..., None] * second).reshape(HORIZON, STATES, 4).numpy()
        state_value = values(mdp, policy)
        self.paths = enumerate_paths(mdp, policy)
        count = [len(path.actions) for path in self.paths]
        index = torch.tensor([[k // 2 if k < 2 * n else -1 for k in range(2 * HORIZON)] for n in count])
        self.turns = Turns.of(index >= 0, index, HORIZON)
        self.prob = torch.tensor([path.probability for path in self.paths], dtype=torch.float64)
        self.rewards = self._pad([path.rewards for path in self.paths], HORIZON)
        self.ret = self.rewards.sum(1)
        self.values = self._pad(
            [self._path_values(mdp, policy, state_value, p) for p in self.paths], 2 * HORIZON
        )
        self.zeros = torch.zeros(len(self.paths), dtype=torch.float64)

    @staticmethod
    def _pad(rows, width: int) -> Tensor:
        return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)

    @staticmethod
    def _path_values(mdp, policy, state_value, path) -> list[float]:
        found = []
        for h, (s, a) in enumerate(zip(path.states, path.actions, strict=False)):
            after = np.where(mdp.terminal, 0.0, state_value[h + 1])
            q = mdp.transitions[s] @ (mdp.rewards + after)
            pair = slice(2 * (a // 2), 2 * (a // 2) + 2)
            odds = policy[h, s, pair] / policy[h, s, pair].sum()
            found += [float(state_value[h, s]), float(odds @ q[pair])]
        return found

    def logprobs(self) -> Tensor:
        """[P, 2 K], a function of the logits; 0 where there is no token."""
        h = torch.arange(HORIZON).expand(len(self.paths), HORIZON)
        s, a = (
            self._index([p.states[:-1] for p in self.paths]),
            self._index([p.actions for p in self.paths]),
        )
        first = self.first.log_softmax(-1)[h, s, a // 2]
        second = self.second.log_softmax(-1)[h, s, a // 2, a % 2]
        return torch.stack([first, second], -1).flatten(1) * self.turns.mask

    @staticmethod
    def _index(rows) -> Tensor:
        return torch.tensor([[*row, *[0] * (HORIZON - len(row))] for row in rows])

    def scores(self) -> Tensor:
        """[P, 2 K, D]: the gradient of each token's log-prob with respect to all logits."""
        made = torch.zeros(len(self.paths), 2 * HORIZON, self.first.numel() + self.second.numel())
        made = made.double()
        first, second = self.first.softmax(-1).detach(), self.second.softmax(-1).detach()
        for p, path in enumerate(self.paths):
            for h, (s, a) in enumerate(zip(path.states, path.actions, strict=False)):
                one = 2 * (STATES * h + s)
                made[p, 2 * h, one : one + 2] = -first[h, s]
                made[p, 2 * h, one + a // 2] += 1
                two = self.first.numel() + 2 * (2 * (STATES * h + s) + a // 2)
                made[p, 2 * h + 1, two : two + 2] = -second[h, s, a // 2]
                made[p, 2 * h + 1, two + a % 2] += 1
        return made

    def spread(self, credit: Tensor) -> float:
        """The variance, summed over logits, of one path's gradient estimate."""
        rows = (credit[..., None] * self.scores()).sum(1)
        mean = (self.prob[:, None] * rows).sum(0)
        return float((self.prob * (rows - mean).square().sum(1)).sum())

    def args(self):
        return self.turns, self.rewards, self.values, self.zeros

    def gradient(self, of: Tensor) -> Tensor:
        parts = torch.autograd.grad(of, [self.first, self.second], retain_graph=True, allow_unused=True)
        shapes = (self.first, self.second)
        filled = [torch.zeros_like(s) if g is None else g for g, s in zip(parts, shapes, strict=True)]
        return torch.cat([g.flatten() for g in filled])

    def expected(self, credit: Tensor, logs: Tensor) -> Tensor:
        """The gradient that an estimate gives on average over all paths."""
        return self.gradient((self.prob[:, None] * credit.detach() * logs * self.turns.mask).sum())

    def true_gradient(self, logs: Tensor) -> Tensor:
        """That of the expected return, from the paths' probabilities as functions of the logits."""
        chance = self.prob * (logs.sum(1) - logs.sum(1).detach()).exp()
        return self.gradient((chance * self.ret).sum())


@pytest.fixture(params=list(itertools.product(range(3), (False, True))), scope="module")
def world(request) -> World:
    return World(*request.param)


def test_the_listed_paths_are_the_world(world):
    assert world.prob.sum().item() == pytest.approx(1)
    start = (world.prob * world.ret).sum().item()
    assert torch.allclose(world.values[:, 0], torch.full_like(world.ret, start))


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_token_and_turn_gae_give_the_policy_gradient(world, lam):
    logs = world.logprobs()
    truth = world.true_gradient(logs)
    token = adv.token_gae(*world.args(), gamma=1.0, lam=lam)
    turn = world.turns.to_tokens(adv.turn_gae(*world.args(), gamma=1.0, lam=lam))
    torch.testing.assert_close(world.expected(token, logs), truth)
    torch.testing.assert_close(world.expected(turn, logs), truth)


@pytest.mark.parametrize("beta", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_the_multiscale_estimate_reweighs_the_policy_gradient_token_by_token(world, beta, lam):
    """docs/mpo.md, eq. 5: token j of n counts 1 + beta (1 - c_j / n) times, c_j = 1 + lam + ... lam^(j-1)."""
    logs = world.logprobs()
    got = world.expected(adv.multiscale(*world.args(), lam_token=lam, beta=beta), logs)
    exact = adv.token_gae(*world.args(), gamma=1.0, lam=0.0)
    place = torch.arange(2 * HORIZON) % 2
    factor = 1 + beta * (1 - torch.where(place == 0, 1.0, 1.0 + lam) / 2)
    torch.testing.assert_close(got, world.expected(exact * factor, logs))
    along = torch.dot(got, world.true_gradient(logs))
    assert along > 0


def test_centred_and_dropped_boundaries_keep_an_ascent_direction(world):
    logs = world.logprobs()
    truth = world.true_gradient(logs)
    for boundary in ("bootstrap", "drop"):
        got = world.expected(adv.multiscale(*world.args(), boundary=boundary), logs)
        assert torch.dot(got, truth) > 0


def test_without_a_critic_long_turns_hide_early_credit_from_tokens_but_not_from_turns():
    """An uninformed critic: turn GAE keeps the direction of the policy gradient, token GAE loses it."""
    world = World(0, True)
    logs = world.logprobs()
    truth = world.true_gradient(logs)
    length = 30
    index = torch.tensor([[k for k in range(HORIZON) for _ in range(length)] for _ in world.paths])
    mask = world.turns.valid.repeat_interleave(length, 1)
    long = Turns.of(mask, index, HORIZON)
    flat = torch.zeros(index.shape, dtype=torch.float64)
    args = long, world.rewards, flat, world.zeros
    per_turn = {
        "token": long.at_starts(adv.token_gae(*args, gamma=1.0, lam=0.9)),
        "turn": adv.turn_gae(*args, gamma=1.0, lam=0.9),
    }
    bias = {
        name: (world.expected(world.turns.to_tokens(credit), logs) - truth).norm() / truth.norm()
        for name, credit in per_turn.items()
    }
    assert bias["turn"] < 0.25 < 0.7 < bias["token"]


def test_true_values_take_out_variance_that_the_future_adds(world):
    """Of a turn's credit with true values: the less of the future is in it, the less it varies."""
    level = [
        world.turns.to_tokens(adv.turn_gae(*world.args(), gamma=1.0, lam=lam)) for lam in (0, 0.9, 1)
    ]
    short, usual, full = map(world.spread, level)
    assert short <= usual + 1e-9 and usual <= full + 1e-9
    summed = (level[0][..., None] * world.scores()).sum(1)
    mean = (world.prob[:, None] * summed).sum(0)
    torch.testing.assert_close(mean, world.true_gradient(world.logprobs()))


def test_the_objectives_gradient_is_the_policy_gradient_where_it_was_sampled(world):
    logs = world.logprobs()
    credit = adv.token_gae(*world.args(), gamma=1.0, lam=1.0)
    for ratio in (token_ratio(logs, logs.detach()), turn_ratio(world.turns, logs, logs.detach())):
        surrogate = clipped(ratio, credit, low=0.2, high=0.2)
        got = world.gradient((world.prob[:, None] * surrogate * world.turns.mask).sum())
        torch.testing.assert_close(got, world.true_gradient(logs))
