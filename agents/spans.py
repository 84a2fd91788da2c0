"""Spans: which token ids of a path are its actions, and how they are scored with few passes.

A path is a list of pairs (prompt ids, action ids), one a turn, as Trajectory.sequences() gives them.
Turns that extend each other are one sequence with several spans.
"""

from collections.abc import Sequence
from typing import NamedTuple

from turnbench.agents.model import common_prefix
from turnbench.envs.errors import ModelError

Ids = tuple[int, ...]
Pair = tuple[Ids, Ids]


def check_ids(pairs: Sequence[Pair], vocabulary: int) -> None:
    """Raises ModelError where a prompt is empty, or an id is none of a network's `vocabulary` ids."""
    for prompt, ids in pairs:
        if not prompt or min((*prompt, *ids)) < 0 or max((*prompt, *ids)) >= vocabulary:
            raise ModelError(f"an empty prompt, or ids outside the vocabulary of {vocabulary}")


class Host(NamedTuple):
    """A sequence, and the spans (index, start, end) of it whose log-probs are wanted."""

    ids: Ids
    spans: list[tuple[int, int, int]]

    @property
    def first(self) -> int:
        """Where its first span starts."""
        return min(start for _, start, _ in self.spans)


def hosts_of(sequences: Sequence[tuple[Ids, int]]) -> list[Host]:
    """Sequences of which none starts another; those that did are spans of their hosts.

    Each is given as its ids and where its span starts. Shortest first.
    """
    found: list[Host] = []
    for index in sorted(range(len(sequences)), key=lambda k: sequences[k][0], reverse=True):
        ids, start = sequences[index]
        if start == len(ids):
            continue
        if not found or common_prefix(ids, found[-1].ids) < len(ids):
            found.append(Host(ids, []))
        found[-1].spans.append((index, start, len(ids)))
    return sorted(found, key=lambda host: len(host.ids))


def fit(pairs: Sequence[Pair], context: int | None) -> tuple[list[Pair], int]:
    """The pairs with their prompts cut from the left where they exceed `context`, and how many were.

    Cuts are multiples of half the context, so that neighbouring turns keep the same beginning and still
    share a pass; what is kept is at least half a context, the action included.
    Raises ModelError for an action without tokens, and for one that alone exceeds the context.
    """
    fitted, cut = [], 0
    for turn, (prompt, ids) in enumerate(pairs):
        if not ids or not prompt:
            what = "action" if prompt else "prompt"
            raise ModelError(
                f"the {what} of turn {turn + 1} has no tokens, so there is nothing to score"
            )
        gone = 0 if context is None else _excess(len(prompt), len(ids), context, turn)
        cut += gone > 0
        fitted.append((prompt[gone:], ids))
    return fitted, cut


def _excess(prompt: int, ids: int, context: int, turn: int) -> int:
    """How many tokens of a prompt have to go."""
    if ids + 1 > context:
        raise ModelError(
            f"the action of turn {turn + 1} has {ids} tokens; the model's context is {context}"
        )
    over, step = prompt + ids - context, max(1, context // 2)
    return 0 if over <= 0 else min(-(-over // step) * step, prompt - 1)
