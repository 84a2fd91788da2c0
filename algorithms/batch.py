"""Batch: episodes as padded tensors, exactly as they were sampled.

An episode is one row of tokens as long as each turn's prompt extends all that came before it. Where
it doesn't (a history window, dropped reasoning), a new row begins: every turn is trained on the very
prompt it was sampled from. Action tokens also stand in a compact layout [B, N], an episode's tokens
in the order they were written and nothing between them; credit is worked out there.

Shapes: B episodes, R >= B rows, T tokens a row, N action tokens an episode, K turns.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnbench.algorithms.advantages import Turns
from turnbench.envs.errors import LogError
from turnbench.envs.record import Trajectory

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """A trajectory, the group of attempts at one task that it belongs to, and what came after it.

    `tail` are the ids of the prompt that would have been next, where the episode was truncated: the
    critic's word on them is the bootstrap value. Empty: the last action is the last that is known.
    """

    path: Trajectory
    group: int = 0
    tail: Ids = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Episodes as tensors.

    Rows: `ids` [R, T] long, padded on the right with 0; `acts` [R, T] bool marks action tokens; `owner`
    [R] long is each row's episode, ascending; `size` [R] long counts its tokens.
    Episodes: `turns` over the compact layout [B, N]; `old` [B, N], the log-probs (nats) at sampling;
    `rewards` [B, K] float64; `truncated` [B] bool, whether the end is bootstrapped; `group` [B] long;
    `anchors` [B, K] long, one number for each (group, observation); `ret` [B] float64, the return.
    `extra`: further [B, ...] tensors by name, which are cut along.
    """

    ids: Tensor
    acts: Tensor
    owner: Tensor
    size: Tensor
    turns: Turns
    old: Tensor
    rewards: Tensor
    truncated: Tensor
    group: Tensor
    anchors: Tensor
    ret: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of episodes."""
        return len(self.ret)

    def with_extra(self, **tensors: Tensor) -> "Batch":
        """The same batch with further tensors [B, ...]."""
        return dataclasses.replace(self, extra=self.extra | tensors)

    def take(self, chosen: Sequence[int]) -> "Batch":
        """The episodes of these numbers, which must ascend, cut to the longest row among them."""
        device = self.ids.device
        kept = torch.tensor(list(chosen), dtype=torch.long, device=device)
        rows = torch.isin(self.owner, kept)
        width = int(self.size[rows].max()) if len(kept) else 0
        return Batch(
            self.ids[rows, :width],
            self.acts[rows, :width],
            torch.searchsorted(kept, self.owner[rows]),
            self.size[rows],
            self.turns.take(kept),
            self.old[kept],
            self.rewards[kept],
            self.truncated[kept],
            self.group[kept],
            self.anchors[kept],
            self.ret[kept],
            {name: tensor[kept] for name, tensor in self.extra.items()},
        )

    def pieces(self, tokens: int) -> Iterator["Batch"]:
        """Parts of similar length with at most `tokens` padded tokens each (one episode at the least)."""
        widths, counts = _per_episode(self.owner, self.size, len(self))
        part: list[int] = []
        for k in np.argsort(-widths, kind="stable").tolist():
            rows = counts[part].sum() + counts[k]
            if part and rows * widths[part[0]] > tokens:
                yield self.take(sorted(part))
                part = []
            part.append(k)
        if part:
            yield self.take(sorted(part))

    def compact(self, flat: Tensor) -> Tensor:
        """One number for each action token, rows after rows [M] -> [B, N]; 0 elsewhere."""
        made = torch.zeros(self.old.shape, dtype=flat.dtype, device=flat.device)
        return made.masked_scatter(self.turns.mask, flat)

    def before(self, said: Tensor) -> Tensor:
        """The critic's words after each token [R, T] -> what it said before each action token [B, N]."""
        earlier = torch.cat([said[:, :1], said[:, :-1]], 1)
        return self.compact(earlier[self.acts])

    def after_turns(self, said: Tensor) -> Tensor:
        """The critic's words after each token [R, T] -> after each turn's last action token [B, K]."""
        return self.turns.at_ends(self.compact(said[self.acts]))

    def bootstrap(self, said: Tensor) -> Tensor:
        """The critic's words [R, T] -> the value of the state after each episode [B]; 0 where it ended."""
        last = torch.zeros(len(self), dtype=torch.long, device=said.device)
        last = last.scatter_reduce(
            0, self.owner, torch.arange(len(self.owner), device=said.device), "amax"
        )
        return said[last, self.size[last] - 1] * self.truncated

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on another device."""
        moved = {
            f.name: v.to(device)
            for f in dataclasses.fields(self)
            if hasattr(v := getattr(self, f.name), "to")
        }
        return dataclasses.replace(self, **moved, extra={k: v.to(device) for k, v in self.extra.items()})


def _per_episode(owner: Tensor, size: Tensor, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(longest row, number of rows) of each episode."""
    owners = owner.cpu().numpy()
    longest = np.zeros(episodes, dtype=np.int64)
    np.maximum.at(longest, owners, size.cpu().numpy())
    return longest, np.bincount(owners, minlength=episodes)


def collate(episodes: Sequence[Episode], *, bootstrap: bool = True) -> Batch:
    """Episodes as one batch.

    A turn of which no token was sampled is no decision: what it paid goes to the turn before it.
    An episode without any action token keeps its place and has no weight. `bootstrap` False takes a
    truncated episode's end for a real one. Raises LogError where a turn has no token ids.
    """
    laid = [_lay_out(episode) for episode in episodes]
    rows = [row for one in laid for row in one.rows]
    owner = [k for k, one in enumerate(laid) for _ in one.rows]
    tokens = max((len(ids) for ids, _ in rows), default=0)
    acting = max((len(one.turn) for one in laid), default=0)
    count = max((len(one.rewards) for one in laid), default=0)
    index = _padded([one.turn for one in laid], acting, torch.long)
    mask = torch.arange(acting) < torch.tensor([len(one.turn) for one in laid])[:, None]
    number = _Numbering()
    anchors = [
        [number((e.group, seen)) for seen in one.seen] for e, one in zip(episodes, laid, strict=True)
    ]
    truncated = [bootstrap and one.truncated for one in laid]
    return Batch(
        ids=_padded([ids for ids, _ in rows], tokens, torch.long),
        acts=_padded([acts for _, acts in rows], tokens, torch.bool),
        owner=torch.tensor(owner),
        size=torch.tensor([len(ids) for ids, _ in rows]),
        turns=Turns.of(mask, index, count),
        old=_padded([one.old for one in laid], acting, torch.float32),
        rewards=_padded([one.rewards for one in laid], count, torch.float64),
        truncated=torch.tensor(truncated),
        group=torch.tensor([episode.group for episode in episodes]),
        anchors=_padded(anchors, count, torch.long),
        ret=torch.tensor([episode.path.ret for episode in episodes], dtype=torch.float64),
    )


@dataclass(slots=True)
class _Laid:
    rows: list[tuple[list[int], list[bool]]] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    old: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    truncated: bool = False

    def extend(self, prompt: Ids, acts: Ids) -> None:
        """Append a prompt and what was sampled after it: to the last row where the prompt extends it."""
        if not self.rows or list(prompt[: len(self.rows[-1][0])]) != self.rows[-1][0]:
            self.rows.append(([], []))
        ids, marks = self.rows[-1]
        marks += [False] * (len(prompt) - len(ids)) + [True] * len(acts)
        ids += [*prompt[len(ids) :], *acts]


def _lay_out(episode: Episode) -> _Laid:
    laid = _Laid(truncated=episode.path.outcome == "truncated")
    for turn, (prompt, ids) in zip(episode.path.turns, episode.path.sequences(), strict=True):
        assert turn.tokens is not None
        if not ids:
            if laid.rewards:
                laid.rewards[-1] += turn.reward
            continue
        if not prompt:
            raise LogError(f"task {episode.path.task.id}: a turn was sampled from an empty prompt")
        laid.extend(prompt, ids)
        laid.turn += [len(laid.rewards)] * len(ids)
        laid.old += turn.tokens.logprobs
        laid.rewards.append(turn.reward)
        laid.seen.append(turn.observation)
    if laid.truncated and episode.tail and laid.rows:
        laid.extend(episode.tail, ())
    if not laid.rows:
        laid.rows.append(([0], [False]))
    return laid


class _Numbering(dict[tuple[int, str], int]):
    """Numbers things in the order of their first appearance."""

    def __call__(self, thing: tuple[int, str]) -> int:
        return self.setdefault(thing, len(self))


def _padded(rows: Sequence[Sequence[float]], width: int, dtype: torch.dtype) -> Tensor:
    made = torch.zeros(len(rows), width, dtype=dtype)
    for k, row in enumerate(rows):
        made[k, : len(row)] = torch.tensor(row, dtype=dtype)
    return made
