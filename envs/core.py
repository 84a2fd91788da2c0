"""TextEnv: a Gymnasium environment whose one `step` is one turn, and that can be forked.

An author subclasses TextEnv and writes `tasks`, `_reset` and `_step`; a world that can copy itself
also overrides `fork`. A plain `gymnasium.Env` needs none of this: `PlainEnv` wraps it.
"""

import copy
import math
import string
import zlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from turnbench.envs.errors import BadStep, ConfigError, EpisodeOver, ForkError, UnknownName

Info = dict[str, Any]
MAX_SEED = 2**31


class UnicodeText(gymnasium.spaces.Text):
    """Any text. Gymnasium's own Text space knows only a fixed set of characters."""

    def __init__(self, max_length: int = 1_000_000) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether `x` is text that UTF-8 can hold and no longer than the bound."""
        return isinstance(x, str) and len(x) <= self.max_length and x == clean(x)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short random printable text (never as long as the bound)."""
        size = int(self.np_random.integers(1, 40))
        return "".join(self.np_random.choice(list(string.printable), size=size))


def clean(text: str) -> str:
    """`text` with what UTF-8 can't hold (lone surrogates) replaced by question marks."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


class Step(NamedTuple):
    """What `_step` answers: one turn of the world. `info["success"]` may tell how it ended."""

    observation: str
    reward: SupportsFloat = 0.0
    terminated: bool = False
    info: Info | None = None


class Counts:
    """What an environment and all its forks have been asked to do, for the bill."""

    __slots__ = ("forks", "replayed", "steps")

    def __init__(self) -> None:
        self.steps = self.replayed = self.forks = 0


class TextEnv(gymnasium.Env[str, str]):
    """A multi-turn text world.

    `reset(seed=..., options={"task": id})` starts task `id`; `step(action)` plays one turn. The same
    class, arguments, task, seed and actions give the same bytes, in any process. After `max_turns`
    turns the episode is truncated. Bad actions are answered, never raised; `step` after the end
    raises EpisodeOver.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    default_turns: ClassVar[int] = 20
    instructions: str = ""
    """What a newcomer must know to act here, in the second person; agents put it into the prompt."""
    has_success: bool = False
    """Whether the last step's `info["success"]` tells if the task was solved (absent: it was not)."""
    recorded: ClassVar[tuple[str, ...]] = ()
    """Names of the last step's info that go into the record; what they hold must be JSON."""
    return_range: tuple[float, float] | None = None
    """The lowest and highest return of an episode, where it is known."""
    can_fork: ClassVar[bool] = True
    """Whether `fork` works; False for a world that can neither copy itself nor be replayed."""
    quick_solution: ClassVar[bool] = True
    """Whether `solution` answers at once; where it doesn't, verification doesn't ask."""
    nondeterministic: bool = False
    """Whether this world declares that the same actions may be answered otherwise (Gymnasium's word):
    then nothing it was played can be checked by replay, and search by copies rests on its own `fork`."""
    reply_format: ClassVar[str] = "last-action"
    """How a Thought/Action reply is read in this world (agents/react.py has the rules)."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _generator: np.random.Generator | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments, from which `spawn` makes an environment like this one."""
        env = super().__new__(cls)
        env._arguments = (args, kwargs)
        return env

    def __init__(self, *, max_turns: int | None = None, render_mode: str | None = None) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.max_turns = self.default_turns if max_turns is None else max_turns
        if self.max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; it must be at least 1")
        self.render_mode = render_mode
        self.counts = Counts()
        self.history: list[str] = []
        self.task = ""
        self.seed = 0
        self.over = True
        self.observation = ""
        self._rng: np.random.Generator | None = None

    # --- what an author writes ---------------------------------------------------------------

    @abstractmethod
    def tasks(self, split: str) -> Sequence[str]:
        """The ids of a split's tasks, always in the same order. Raises UnknownName."""

    @abstractmethod
    def _reset(self, task: str) -> str:
        """Start `task` (drawing only from `self.rng`) and return the first observation."""

    @abstractmethod
    def _step(self, action: str) -> Step:
        """Play one turn. Must answer any text without raising."""

    # --- what everybody calls ----------------------------------------------------------------

    @property
    def _np_random(self) -> np.random.Generator | None:
        """Gymnasium's own generator, made when it is asked for: making it costs more than a reset."""
        if self._generator is None and self._np_random_seed is not None:
            self._generator, _ = seeding.np_random(self._np_random_seed)
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator | None) -> None:
        self._generator = generator

    def data_digest(self) -> str:
        """Digest of the data behind this world, "" where it has none besides its code."""
        return ""

    def solution(self) -> Sequence[str]:
        """Actions that solve this episode's task from its start; empty where the world knows none."""
        return ()

    def check_split(self, split: str) -> None:
        """For `tasks`: raises UnknownName where this world has no such split."""
        if split not in self.splits:
            raise UnknownName("split", split, self.splits)

    @property
    def rng(self) -> np.random.Generator:
        """This episode's own random generator; nothing else may be drawn from."""
        if self._rng is None:
            self._rng = np.random.default_rng(self.seed)
        return self._rng

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Start an episode: of `options["task"]`, else of a random task of the first split."""
        if type(seed) is int and seed >= 0:
            self._np_random, self._np_random_seed = None, seed
        else:
            super().reset(seed=seed)
        unknown = set(options or {}) - {"task"}
        if unknown:
            raise UnknownName("reset option", sorted(unknown)[0], ["task"])
        task = (options or {}).get("task")
        if task is None:
            known = self.tasks(self.splits[0])
            if not known:
                raise ConfigError(f"no task can be drawn: the split {self.splits[0]!r} is empty")
            task = known[int(self.np_random.integers(len(known)))]
        self.seed = int(self.np_random.integers(MAX_SEED)) if seed is None else seed
        self.task, self.history, self.over, self._rng = str(task), [], False, None
        self.observation = _text(self._reset(self.task), "reset")
        return self.observation, {"task": self.task, "seed": self.seed}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play one turn: (observation, reward, terminated, truncated, info)."""
        if self.over:
            raise EpisodeOver("the episode is over: call reset() before step()")
        if not action.isascii():
            action = clean(action)
        self.history.append(action)
        self.counts.steps += 1
        observation, reward, terminated, info = self._step(action)
        if type(observation) is not str or not observation.isascii():
            observation = _text(observation, "step")
        if type(reward) is not float or not math.isfinite(reward):
            reward = _number(reward, action)
        truncated = not terminated and len(self.history) >= self.max_turns
        self.over, self.observation = terminated or truncated, observation
        return observation, reward, terminated, truncated, dict(info) if info else {}

    def fork(self) -> Self:
        """An independent copy of this world as it stands now, made by replaying its actions.

        Raises ForkError where the replay shows another observation than the original.
        """
        twin, steps = self.spawn(), self.counts.steps
        self.counts.forks += 1
        try:
            twin.reset(seed=self.seed, options={"task": self.task})
            for action in self.history:
                twin.step(action)
            if twin.observation != self.observation:
                raise ForkError(
                    f"task {self.task}, seed {self.seed}: after {len(self.history)} replayed actions "
                    f"the observation is {twin.observation[:80]!r}, not {self.observation[:80]!r}"
                )
        except BaseException:
            twin.close()
            raise
        finally:
            self.counts.replayed += self.counts.steps - steps
            self.counts.steps = steps
        return twin

    def spawn(self) -> Self:
        """A new environment made with the same arguments; its work goes on the same bill."""
        args, kwargs = self._arguments
        twin = type(self)(*args, **kwargs)
        twin.counts, twin.nondeterministic = self.counts, self.nondeterministic
        return twin

    def render(self) -> str | None:
        """The current observation (render mode "ansi")."""
        return self.observation if self.render_mode == "ansi" else None

    def _shallow_copy(self) -> Self:
        """For worlds that copy themselves: all but the world's own state is made independent."""
        twin = copy.copy(self)
        twin.history = self.history.copy()
        twin._np_random = twin._np_random_seed = None
        if self._rng is not None:
            twin._rng = copy.deepcopy(self._rng)
        self.counts.forks += 1
        return twin


class PlainEnv(TextEnv):
    """Any `gymnasium.Env` with text in and out, given turns, tasks and forks from outside.

    Its tasks are numbered: task k under seed s resets the wrapped world with a seed made from both.
    Every split is the same row of tasks.
    """

    def __init__(
        self,
        factory: Callable[..., gymnasium.Env[str, str]],
        *,
        max_turns: int | None = None,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.inner: gymnasium.Env[str, str] = factory(**kwargs).unwrapped
        self.instructions = str(getattr(self.inner, "instructions", ""))
        self.return_range = getattr(self.inner, "return_range", None)
        self.nondeterministic = declared_nondeterministic(self.inner)
        self._truncated = False
        self._tools: Any = None

    def tasks(self, split: str) -> Sequence[str]:
        """Task ids "0" to "999", the same for every split."""
        self.check_split(split)
        return [str(number) for number in range(1000)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """As TextEnv.reset; `tools` that the wrapped world shows are passed on."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, info if self._tools is None else {**info, "tools": self._tools}

    def _reset(self, task: str) -> str:
        self._truncated = self.has_success = False  # an episode's record depends on no earlier one
        observation, info = self.inner.reset(seed=mix(self.seed, task))
        self._tools = info.get("tools")
        return observation

    def _step(self, action: str) -> Step:
        observation, reward, terminated, truncated, info = self.inner.step(action)
        self._truncated = bool(truncated)
        self.has_success = self.has_success or "success" in info
        return Step(observation, reward, bool(terminated), info)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """As TextEnv.step; the wrapped world may truncate on its own as well."""
        observation, reward, terminated, truncated, info = super().step(action)
        truncated = truncated or (self._truncated and not terminated)
        self.over = terminated or truncated
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the wrapped world."""
        self.inner.close()


def declared_nondeterministic(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether a world's registration, or its metadata, says `nondeterministic`."""
    registered = getattr(getattr(env, "spec", None), "nondeterministic", False)
    return bool(registered or getattr(env, "metadata", {}).get("nondeterministic", False))


def _text(observation: Any, where: str) -> str:
    if not isinstance(observation, str):
        raise BadStep(f"{where} returned {type(observation).__name__}, not text: {observation!r:.80}")
    return clean(observation)


def _number(reward: Any, action: str) -> float:
    try:
        number = float(reward)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadStep(f"reward {reward!r:.80} after action {action[:80]!r} is no finite number")
    return number


def mix(seed: int, *names: str) -> int:
    """A seed below 2**31 made from a seed and names, the same in every process."""
    entropy = [seed, *(zlib.crc32(name.encode("utf-8", "replace")) for name in names)]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)
