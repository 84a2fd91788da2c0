"""How sure a model was: the scorers that Progress Advantage is measured against. Higher is better.

    mean_logprob      mean log-prob of the sampled tokens
    perplexity        - exp(- that)
    entropy           - mean entropy of the tokens' distributions
    self_certainty    mean KL(uniform || p) (Kang et al. 2025)
    deepconf_*        token confidence C = - mean log-prob of the 20 likeliest tokens (Fu et al. 2025), over
                      windows of tokens: the last one, the lowest tenth of all, the lowest one
    length            minus the number of turns

A peaked distribution has very low log-probs among its likeliest tokens, hence the minus in C. The
released code of Progress Advantage leaves it out, and ranks by windows of turns: `repo_compat`.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from turnbench.agents.readers import Reader, Spec, measured, reading, scribe_of, shared_reader
from turnbench.agents.transcripts import Form
from turnbench.agents.turn_scores import (
    Numbers,
    Rated,
    TurnScorer,
    bottom10,
    check_numbers,
    mean,
    recorded,
)
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Trajectory


def windows(numbers: Numbers, size: int) -> list[float]:
    """Means of all windows of `size` neighbours; the mean of all where there are fewer."""
    if len(numbers) <= size:
        return [mean(numbers)]
    sums = np.cumsum([0.0, *numbers])
    means: list[float] = ((sums[size:] - sums[:-size]) / size).tolist()
    return means


class Confidence(TurnScorer):
    """A number from what one model says of a path's tokens; the subclasses say which.

    `policy`: a checkpoint folder or mapping, as for Progress Advantage, to read the paths again.
    `text`, `resident`: as there. `repo_compat`: the released code's sign and windows.
    """

    measure = "logprob"
    sign = 1.0

    def __init__(
        self,
        *,
        policy: Spec,
        text: Form = "auto",
        resident: bool = True,
        repo_compat: bool = False,
    ) -> None:
        self.policy, self.text, self.resident = policy, text, resident
        self.repo_compat = repo_compat

    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """Each turn's mean. Raises ConfigError, ModelError."""
        return [numbers for numbers, _ in self.rate(paths)]

    def rate(self, paths: Sequence[Trajectory]) -> list[Rated]:
        """Each turn's mean, and a score that is of all tokens. Raises as `turns` does."""
        return [self.rate_tokens(column) for column in self.columns(paths)]

    def rate_tokens(self, column: Sequence[Numbers]) -> Rated:
        """The same of one path, from the measure `column` of its tokens, by turn."""
        signed = self.signed(column)
        score = self.of_tokens(signed) if signed else -math.inf
        return [mean(turn) for turn in signed], score

    def columns(self, paths: Sequence[Trajectory]) -> list[list[list[float]]]:
        """The measure `column` of each token by turn, for each path."""
        if self.resident:
            return self._ask(shared_reader(self.policy), paths)
        with reading(self.policy) as reader:
            return self._ask(reader, paths)

    def _ask(self, reader: Reader, paths: Sequence[Trajectory]) -> list[list[list[float]]]:
        names = [] if self.column == "logprob" else [self.column]
        found = measured(reader, scribe_of(reader, self.text), paths, names)
        columns = [each.column(self.column) for each in found]
        for turns in columns:
            check_numbers(turns, "the policy")
        return columns

    @property
    def column(self) -> str:
        """Which of a reader's measures is taken."""
        return self.measure

    def signed(self, turns: Sequence[Numbers]) -> list[list[float]]:
        """Token measures with the sign of this scorer."""
        return [[self.sign * number for number in turn] for turn in turns]

    def of_tokens(self, turns: Sequence[Numbers]) -> float:
        """A path's score from signed token measures by turn."""
        return mean([number for turn in turns for number in turn])


class MeanLogprob(Confidence):
    """The mean log-prob (nats) of all action tokens; without a policy, that of the model that played."""

    name, strip = "mean log-prob", "mean log-prob [nats]"

    def __init__(
        self, *, policy: Spec | None = None, text: Form = "auto", resident: bool = True
    ) -> None:
        super().__init__(policy=policy or "", text=text, resident=resident)

    def columns(self, paths: Sequence[Trajectory]) -> list[list[list[float]]]:
        """Log-probs by turn. Raises ConfigError where there are none, Unscored where some are missing."""
        if self.policy:
            return super().columns(paths)
        return recorded(paths, f"the scorer {self.name!r}")


class Perplexity(MeanLogprob):
    """Minus the perplexity of all action tokens: it ranks as the mean log-prob does."""

    name = "perplexity"

    def of_tokens(self, turns: Sequence[Numbers]) -> float:
        """Minus exp(minus the mean log-prob)."""
        return -math.exp(-super().of_tokens(turns))


class Entropy(Confidence):
    """Minus the mean entropy (nats) of the distributions that the tokens were drawn from."""

    name, strip = "entropy", "minus entropy [nats]"
    measure, sign = "entropy", -1.0

    def __init__(self, *, policy: Spec, text: Form = "auto", resident: bool = True) -> None:
        super().__init__(policy=policy, text=text, resident=resident)


class SelfCertainty(Confidence):
    """Mean KL divergence (nats) from the uniform distribution; 0 where the model knows nothing.

    With `repo_compat`: the mean over turns of the mean log-prob of the 20 likeliest tokens, as it is.
    """

    name, strip = "self-certainty", "self-certainty [nats]"
    measure = "certainty"

    @property
    def column(self) -> str:
        """Released code takes another measure."""
        return "top" if self.repo_compat else self.measure

    def of_tokens(self, turns: Sequence[Numbers]) -> float:
        """Mean over tokens, or with `repo_compat` over turns."""
        return mean([mean(turn) for turn in turns]) if self.repo_compat else super().of_tokens(turns)


class DeepConf(Confidence):
    """Token confidence by windows of `window` tokens (2048 as published); subclasses say of which."""

    strip, measure = "token confidence [nats]", "top"

    def __init__(
        self,
        *,
        policy: Spec,
        window: int = 2048,
        text: Form = "auto",
        resident: bool = True,
        repo_compat: bool = False,
    ) -> None:
        super().__init__(policy=policy, text=text, resident=resident, repo_compat=repo_compat)
        if window < 1:
            raise ConfigError(f"window is {window}; at least 1 token is needed")
        self.window = window

    def signed(self, turns: Sequence[Numbers]) -> list[list[float]]:
        """Confidence; with `repo_compat` its negative."""
        sign = 1.0 if self.repo_compat else -1.0
        return [[sign * number for number in turn] for turn in turns]

    def of_tokens(self, turns: Sequence[Numbers]) -> float:
        """From windows of tokens, or with `repo_compat` from turns."""
        if self.repo_compat:
            return self.of_groups([mean(turn) for turn in turns])
        tokens = [number for turn in turns for number in turn]
        return self.of_groups(windows(tokens, self.window))

    @abstractmethod
    def of_groups(self, groups: Numbers) -> float:
        """A path's score from its groups' confidence, in order."""


class DeepConfTail(DeepConf):
    """The last window."""

    name = "DeepConf tail"

    def of_groups(self, groups: Numbers) -> float:
        """The last one."""
        return groups[-1]


class DeepConfBottom(DeepConf):
    """The lowest tenth of windows."""

    name = "DeepConf bottom 10 %"

    def of_groups(self, groups: Numbers) -> float:
        """Mean of the lowest tenth, rounded down but one at least, as DeepConf's code has it; with
        `repo_compat` rounded up."""
        if self.repo_compat:
            return bottom10(groups)
        return mean(sorted(groups)[: max(1, len(groups) // 10)])


class DeepConfLowest(DeepConf):
    """The lowest window."""

    name = "DeepConf lowest group"

    def of_groups(self, groups: Numbers) -> float:
        """The lowest."""
        return min(groups)


class Length(TurnScorer):
    """Minus the number of turns: whoever needs fewer may know the way."""

    name, strip, turn = "length", "minus one a turn", "sum"

    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """Minus one each."""
        return [[-1.0] * len(path.turns) for path in paths]
