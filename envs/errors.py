"""Every error turnbench raises on purpose.

    TurnbenchError
    ├── UnknownName (LookupError)      a name that isn't registered; the message names the neighbours
    ├── ConfigError (ValueError)       a suite, config or option is wrong; the message says where
    ├── EnvError
    │   ├── EpisodeOver                step() after the end, or before reset()
    │   ├── BadStep                    an observation that isn't text, a reward that isn't finite
    │   └── ForkError                  a replayed world differs from the one it was forked from
    ├── ModelError                     a model can't be built or can't be asked
    │   └── Unscored                   a scorer can't say anything of a path
    │       └── Unanswered             as its model gave no answer; asking again later may help
    ├── LogError                       a run folder or log is damaged, foreign or of another version
    ├── TrainingError                  a training run can't go on; the message says where it stands
    └── BoardError                     a leaderboard file is damaged

What goes wrong *inside* an episode is not an exception but a `Failure` in its record (record.py).
"""

import difflib
from collections.abc import Iterable


class TurnbenchError(Exception):
    """Root of the tree: `except TurnbenchError` catches whatever turnbench raises on purpose."""


class UnknownName(TurnbenchError, LookupError):
    """A look-up failed. The message lists the names nearest to the one asked for."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:12]
        rest = "" if len(near) == len(known) else f" ({len(known)} in all)"
        hint = f"; known: {', '.join(near)}{rest}" if near else "; none is registered"
        super().__init__(f"unknown {kind} {name!r}{hint}")
        self.kind, self.name, self.near = kind, name, near


class ConfigError(TurnbenchError, ValueError):
    """A suite, config or option is wrong; `at` is where in the file, if the raiser knew but not the line."""

    at: tuple[str | int, ...] = ()


class ConfigFaults(ConfigError):
    """Several things are wrong in one config; each of `faults` knows where."""

    def __init__(self, faults: Iterable[ConfigError]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(map(str, self.faults)))


class EnvError(TurnbenchError):
    """An environment was used wrongly or broke its contract."""


class EpisodeOver(EnvError):
    """`step` was called after the end of an episode, or before the first `reset`."""


class BadStep(EnvError):
    """A world answered with something other than text, or with a reward that isn't a finite number."""


class ForkError(EnvError):
    """Replaying the action history led to another observation than the original."""


class ModelError(TurnbenchError):
    """A model can't be built or can't be asked."""


class Unscored(ModelError):
    """A scorer can't say anything of a path; of other paths it may."""


class Unanswered(Unscored):
    """A scorer can't say anything now, as its model gave no answer: asking again later may help."""


class LogError(TurnbenchError):
    """A run folder or its log is damaged, belongs to another suite or has another version."""


class TrainingError(TurnbenchError):
    """A training run can't go on."""


class BoardError(TurnbenchError):
    """A leaderboard file is damaged."""
