"""Progress Advantage: how much an RL checkpoint prefers an action to its reference (Oh et al. 2026).

For the optimum pi* of `return - beta KL(pi || pi_ref)`, in any world, stochastic ones included,

    beta log pi*(a | s) / pi_ref(a | s) = Q*(s, a) - V*(s)

the soft-optimal advantage. Summed over a turn's tokens it is the turn's, summed over turns the return
less V*(s_0), with the world's luck taken out. Of a real checkpoint this holds as far as it is near that
optimum, from that very reference. beta is a scale that no ranking depends on; here it is 1.
"""

from collections.abc import Sequence
from typing import Literal

from turnbench.agents.readers import (
    Measured,
    Reader,
    Spec,
    least_context,
    measured,
    reading,
    scribe_of,
    shared_reader,
)
from turnbench.agents.transcripts import Form, Scribe, check_same_vocabulary
from turnbench.agents.turn_scores import (
    Aggregation,
    Numbers,
    TurnScorer,
    aggregate,
    check_numbers,
    recorded,
)
from turnbench.envs.errors import ConfigError, Unscored
from turnbench.envs.record import Trajectory


def turn_advantage(policy: Numbers, reference: Numbers, how: Aggregation = Aggregation()) -> float:
    """A turn's advantage from its tokens' log-probs under both models. Raises ValueError for none."""
    if len(policy) != len(reference):
        raise ValueError(f"{len(policy)} log-probs of the policy and {len(reference)} of the reference")
    if how.order == "aggregates":
        return aggregate(how.token, policy) - aggregate(how.token, reference)
    return aggregate(how.token, [p - r for p, r in zip(policy, reference, strict=True)])


def turn_advantages(
    policy: Sequence[Numbers], reference: Sequence[Numbers], how: Aggregation = Aggregation()
) -> list[float]:
    """Each turn's advantage. Raises Unscored for turns without tokens, and log-probs that are none."""
    check_numbers(policy, "the policy")
    check_numbers(reference, "the reference")
    if list(map(len, policy)) != list(map(len, reference)):
        raise Unscored("policy and reference have not read the same tokens")
    return [turn_advantage(p, r, how) for p, r in zip(policy, reference, strict=True)]


def path_advantage(
    policy: Sequence[Numbers], reference: Sequence[Numbers], how: Aggregation = Aggregation()
) -> float:
    """A path's score. Raises as `turn_advantages` does, and ValueError for a path without turns."""
    return aggregate(how.turn, turn_advantages(policy, reference, how))


class ProgressAdvantage(TurnScorer):
    """Scores turns by `policy` against `reference`.

    Both are checkpoint folders, or mappings as readers.open_reader takes them (a server, a merged
    reference). `policy` None is the model that played: its log-probs are in the log, and only the
    reference has to read. `token`, `turn`, `order`: how numbers are put together (Aggregation).
    `text`: "log" takes the log's token ids, "chat" and "plain" write and tokenise the text anew, "auto"
    takes the ids where there are any. `resident`: whether models stay in memory between episodes; if
    not, they are loaded for each call, one after the other. Both read as much as the smaller context holds.
    """

    name, strip = "progress advantage", "progress advantage [nats]"

    def __init__(
        self,
        *,
        reference: Spec,
        policy: Spec | None = None,
        token: str = "mean",
        turn: str = "mean",
        order: Literal["difference", "aggregates"] = "difference",
        text: Form = "auto",
        resident: bool = True,
    ) -> None:
        self.how = Aggregation(token, turn, order).check()
        self.policy, self.reference, self.text, self.resident = policy, reference, text, resident
        self.turn = turn
        if policy is None and text not in ("auto", "log"):
            raise ConfigError(
                f"text is {text!r}, but without a policy its log-probs are the log's, and so are the tokens"
            )

    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """One advantage a turn. Raises ConfigError, ModelError, Unscored, Unanswered."""
        scribe: Scribe | None = None
        context: int | None = None
        said: list[list[list[float]]] = []
        if self.policy is None:
            said = recorded(paths, "Progress Advantage without a policy")
        else:
            context = least_context(self.policy, self.reference)
            scribe, found = self._read(self.policy, paths, None, context)
            said = [each.column("logprob") for each in found]
        _, theirs = self._read(self.reference, paths, scribe, context)
        pairs = zip(said, theirs, strict=True)
        return [turn_advantages(mine, other.column("logprob"), self.how) for mine, other in pairs]

    def _read(
        self, spec: Spec, paths: Sequence[Trajectory], scribe: Scribe | None, context: int | None
    ) -> tuple[Scribe, list[Measured]]:
        if self.resident:
            return self._with(shared_reader(spec), paths, scribe, context)
        with reading(spec) as reader:
            return self._with(reader, paths, scribe, context)

    def _with(
        self,
        reader: Reader,
        paths: Sequence[Trajectory],
        scribe: Scribe | None,
        context: int | None,
    ) -> tuple[Scribe, list[Measured]]:
        """Both models read the same ids, as the first one's tokenizer makes them."""
        if scribe is None:
            scribe = scribe_of(reader, "log" if self.policy is None else self.text)
        else:
            check_same_vocabulary(scribe.tokenizer, reader.tokenizer)
        return scribe, measured(reader, scribe, paths, context=context)
