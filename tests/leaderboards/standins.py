"""Worlds, models and agents with planted faults, for the tests of leaderboards/.

What goes wrong is named by the task: each part of an episode looks at its task's id and misbehaves
when the id tells it to. All that isn't named behaves and is deterministic.
"""

import sys
import time

import gymnasium

from turnbench.agents.core import Population
from turnbench.agents.model import Completion, Sampling
from turnbench.agents.react import ReAct
from turnbench.envs.core import Step, TextEnv
from turnbench.envs.errors import ConfigError, ModelError, Unanswered, UnknownName, Unscored
from turnbench.envs.record import Failure, Outcome, Trajectory, Turn, Usage

GOOD = [f"good{k}" for k in range(400)]
BAD = [
    *("env-reset", "env-step", "env-hang", "env-nan"),
    *("model-infra", "model-raises", "model-fatal", "model-hang", "model-surrogate"),
    *("agent-raises", "agent-none", "agent-exit", "agent-config", "agent-nan", "agent-hang"),
    *("agent-other", "agent-steps-on", "agent-unanswered", "agent-unscored"),
]


class World(TextEnv):
    """Three turns, each paid 1 for an even number; `success` if the last was even.

    `broken_from`: constructions from this one on fail. `pause`: seconds a step takes. `diary`: a file
    that gets a line for each reset.
    """

    has_success = True
    return_range = (0.0, 3.0)
    default_turns = 5
    made = 0

    def __init__(self, *, broken_from=10**9, pause=0.0, turns=3, diary=None, **kwargs):
        super().__init__(**kwargs)
        self.diary = diary
        type(self).made += 1
        if type(self).made >= broken_from:
            raise OSError("no more worlds")
        self.pause, self.turns = pause, turns

    def tasks(self, split):
        splits = {"train": GOOD, "test": GOOD, "bad": BAD}
        if split not in splits:
            raise UnknownName("split", split, splits)
        return splits[split]

    def _reset(self, task):
        if task == "env-reset":
            raise RuntimeError("planted in reset")
        if self.diary:
            with open(self.diary, "a", encoding="utf-8") as file:
                file.write(f"{task} {self.seed}\n")
        self.luck = int(self.rng.integers(10))
        return f"task {task} luck {self.luck}"

    def _step(self, action):
        if self.task == "env-step":
            raise RuntimeError("planted in step")
        if self.task == "env-hang":
            time.sleep(3600)
        time.sleep(self.pause)
        number = int(action.rpartition(" ")[2]) if action[-1:].isdigit() else 0
        even = (number + self.luck) % 2 == 0
        reward = float("nan") if self.task == "env-nan" else float(even)
        over = len(self.history) >= self.turns
        return Step(f"task {self.task} turn {len(self.history)}", reward, over, {"success": even})


class Sometimes(gymnasium.Env):
    """A plain world that tells success only for some tasks, and then only at the end."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tells = seed % 2 == 0
        return "go", {}

    def step(self, action):
        return "gone", 1.0, True, False, {"success": True} if self.tells else {}


class Moody(World):
    """Pays by a clock, and says so."""

    metadata = {**World.metadata, "nondeterministic": True}

    def _step(self, action):
        step = super()._step(action)
        return step._replace(observation=f"{step.observation} {time.perf_counter_ns()}")


gymnasium.register("World-v0", World)
gymnasium.register("Moody-v0", Moody)
gymnasium.register("Declared-v0", World, nondeterministic=True)
gymnasium.register("Sometimes-v0", Sometimes)


class Echo:
    """Answers "act N" with N from the prompt's seed. `prices`: whether the cost is known."""

    def __init__(self, *, name="echo", sampling=None, pause=0.0, cost=0.001):
        self.name, self.pause, self.cost = name, pause, cost
        self.sampling = sampling or Sampling()

    def generate(self, prompts, sampling=None):
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        seen = prompt.messages[-1].content
        if "task model-infra" in seen:
            return Failure(Outcome.INFRA_ERROR, "503 from nowhere")
        if "task model-raises" in seen:
            raise RuntimeError("planted in generate")
        if "task model-fatal" in seen:
            raise ModelError("401: who are you?")
        if "task model-hang" in seen:
            time.sleep(3600)
        time.sleep(self.pause)
        odd = "\ud83d " if "task model-surrogate" in seen else ""
        return Completion(f"{odd}act {prompt.seed % 7}", usage=Usage(1, 10, 0, 2, self.cost))

    def close(self):
        pass


class Odd:
    """ReAct, unless the task says otherwise. `colour` is an option to misspell."""

    privileges = ()

    def __init__(self, model, *, colour="red", used=()):
        if colour == "black":
            raise RuntimeError("no black, please")
        self.model, self.privileges = model, tuple(used)

    def solve(self, env, task, rng):
        match task.id:
            case "agent-raises":
                raise KeyError("planted in solve")
            case "agent-none":
                return None
            case "agent-exit":
                sys.exit(3)
            case "agent-config":
                raise ConfigError("planted: wrong option")
            case "agent-unanswered":
                raise Unanswered("planted: the judge is busy")
            case "agent-unscored":
                raise Unscored("planted: no attempt can be scored")
            case "agent-hang":
                time.sleep(3600)
            case "agent-nan":
                bad = Trajectory(task, (Turn("a", "b", float("nan")),), "", Outcome.OK)
                return Population((bad,))
            case "agent-other":
                task = type(task)(task.env, "good0", task.split, task.seed)
            case "agent-steps-on":
                env.reset(seed=0, options={"task": "good0"})
                for _ in range(9):
                    env.step("act 1")
        return ReAct(self.model).solve(env, task, rng)
