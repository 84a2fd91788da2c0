"""Suite: what is measured - tasks x agents x seeds - read from YAML."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from turnbench import envs
from turnbench.agents import agent_class, check_options, model_arguments, model_spec
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError, TurnbenchError, UnknownName
from turnbench.leaderboards.yamlfile import Document, Location, parse_yaml, read_yaml


def _name(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        return value
    raise ValueError("a name of at most 64 letters, digits, dots, dashes and underscores is wanted")


def _tasks(value: Any) -> Any:
    match value:
        case "all":
            return value
        case bool():
            pass
        case int() if value > 0:
            return value
        case [_, *_] if all(isinstance(task, str | int) for task in value):
            return _distinct([str(task) for task in value])
    raise ValueError("'all', a count of at least 1, or a list of task ids is wanted")


def _distinct(values: Any) -> Any:
    seen: set[str] = set()
    for value in values if isinstance(values, list) else ():
        if repr(value) in seen:
            raise ValueError(f"{value} appears twice")
        seen.add(repr(value))
    return values


Name = Annotated[str, BeforeValidator(_name)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """A piece of a suite: unknown keys are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EnvSpec(Strict):
    """One environment of a suite and the tasks taken from it."""

    id: str = Field(description="environment id, as `turnbench list envs` shows them")
    split: str = Field("test", description="which split the tasks come from")
    tasks: Annotated[Literal["all"] | int | list[str], BeforeValidator(_tasks)] = Field(
        "all", description="all tasks of the split, the first so many, or a list of task ids"
    )
    max_turns: Count | None = Field(
        None, description="turns before truncation; null for the world's own"
    )
    options: dict[str, Any] = Field({}, description="keyword arguments of the environment")


class AgentSpec(BaseModel):
    """One row of the board: an agent, the model it asks, and the agent's own options beside them."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    agent: str = Field(description="agent name, as `turnbench list agents` shows them, or module:Class")
    model: str | None = Field(None, description="one of the suite's models")

    @property
    def options(self) -> dict[str, Any]:
        """The agent's own options."""
        return dict(self.model_extra or {})


class Limits(Strict):
    """What one episode may use before it ends as `timeout`."""

    model_calls: Annotated[Count | None, Field(description="model calls, over all of its rollouts")] = (
        None
    )
    seconds: Annotated[float, Field(gt=0, description="wall-clock seconds")] = 600


class Suite(Strict):
    """What is measured: every agent plays every task of every environment under every seed."""

    suite: Name = Field(description="name of the suite; names its board too")
    version: Count = Field(1, description="to be raised whenever what is measured changes")
    description: str = Field("", description="one or two sentences for the board")
    seeds: Annotated[list[Seed], Field(min_length=1), BeforeValidator(_distinct)] = [0]
    envs: Annotated[list[EnvSpec], Field(min_length=1), BeforeValidator(_distinct)]
    models: dict[Name, dict[str, Any]] = {}
    agents: Annotated[dict[Name, AgentSpec], Field(min_length=1)]
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _models_are_known(self) -> Self:
        for name, spec in self.agents.items():
            if spec.model is not None and spec.model not in self.models:
                why = UnknownName("model", spec.model, self.models)
                context = {"why": str(why), "at": ("agents", name, "model")}
                raise PydanticCustomError("unknown_model", "{why}", context)
        return self

    @property
    def protocol(self) -> dict[str, Any]:
        """What any system on this suite's board has in common: all but the models and agents."""
        return self.model_dump(exclude={"models", "agents", "description"}, mode="json")

    @property
    def digest(self) -> str:
        """Short hash of the protocol: results with different digests can't be compared."""
        return digest_of(self.protocol)

    def system(self, name: str) -> dict[str, Any]:
        """One row's agent with its options and the whole specification of its model."""
        spec = self.agents[name]
        model = None if spec.model is None else {"name": spec.model, **self.models[spec.model]}
        return {"agent": spec.agent, "options": spec.options, "model": model}

    def with_changes(
        self, *, agents: list[str] | None = None, model: str | None = None, tasks: int | None = None
    ) -> "Suite":
        """The suite with only some rows, with another model in every row, or with fewer tasks.

        `model` is "backend:target", as in "hf:FOLDER" or "api:NAME". A local one is sampled as the
        suite's were. An API model needs to be told the rules, so its rows give the world's
        instructions, and log-probs are asked for where a row chooses by them. Raises UnknownName,
        ConfigError.
        """
        rows, models, worlds = dict(self.agents), dict(self.models), list(self.envs)
        for name in agents or ():
            if name not in rows:
                raise UnknownName("agent row", name, rows)
        if agents:
            rows = {name: rows[name] for name in agents}
        if model is not None:
            name = slug(model)
            models = {name: _stand_in(model, rows, models)}
            told = {"instructions": True} if models[name]["backend"] == "api" else {}
            rows = {k: _with_model(row, name, told) if row.model else row for k, row in rows.items()}
        if tasks is not None:
            if tasks < 1:
                raise ConfigError(f"tasks is {tasks}; at least 1 is needed")
            worlds = [spec.model_copy(update={"tasks": tasks_of(spec)[:tasks]}) for spec in worlds]
        return self.model_copy(update={"agents": rows, "models": models, "envs": worlds})


def _stand_in(
    short: str, rows: Mapping[str, AgentSpec], models: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """The specification of a model that takes the place of a suite's own."""
    spec = model_spec(short)
    if spec["backend"] == "api":
        wanted = any(row.options.get("scorer") == "mean_logprob" for row in rows.values())
        return {**spec, "logprobs": True} if wanted else spec
    first: dict[str, Any] = next((models[row.model] for row in rows.values() if row.model), {})
    sampling = ("temperature", "top_p", "max_tokens", "stop")
    return {**spec, **{key: value for key, value in first.items() if key in sampling}}


def _with_model(row: AgentSpec, model: str, told: Mapping[str, Any]) -> AgentSpec:
    """A row with another model; options that its agent has already are told anew."""
    told = {key: value for key, value in told.items() if key in row.options}
    return AgentSpec(agent=row.agent, model=model, **{**row.options, **told})


def digest_of(value: Any) -> str:
    """The first 16 hex digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- finding, reading, checking -------------------------------------------------------------------


def shipped_suites() -> dict[str, Any]:
    """The suites that come with turnbench: name -> file."""
    folder = files("turnbench.leaderboards") / "suites"
    found = {f.name.removesuffix(".yaml"): f for f in folder.iterdir() if f.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def load_suite(name: str, **changes: Any) -> Suite:
    """A shipped suite by name, or a suite file by path, with `Suite.with_changes(**changes)`.

    Raises UnknownName, ConfigError.
    """
    return parse_suite(find_suite(name), **changes)


def find_suite(name: str) -> Document:
    """The YAML of a shipped suite or of a suite file."""
    shipped = shipped_suites()
    if name in shipped:
        return parse_yaml(shipped[name].read_text(encoding="utf-8"), f"{name}.yaml")
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return read_yaml(path)
    raise UnknownName("suite", name, shipped)


def parse_suite(document: Document, **changes: Any) -> Suite:
    """The suite that a YAML document describes, checked as far as possible without running it.

    Only models that are asked are looked at, as their backends may need packages. Raises
    UnknownName, ConfigError.
    """
    suite = document.validate(Suite)
    for k, env in enumerate(suite.envs):
        _check(document, ("envs", k), tasks_of, env)
    suite = suite.with_changes(**changes)
    for name, agent in suite.agents.items():
        _check(document, ("agents", name), _check_agent, agent)
    for name in sorted({agent.model for agent in suite.agents.values() if agent.model}):
        _check(document, ("models", name), _check_model, suite.models[name])
    return suite


def _check(document: Document, at: Location, check: Callable[[Any], Any], spec: Any) -> None:
    """Check a part of a suite; what that raises becomes a ConfigError that says on which line."""
    try:
        check(spec)
    except TurnbenchError as error:
        if at not in document.lines:
            raise
        culprit = getattr(error, "name", None)
        places = (place for place in document.lines if place[: len(at)] == at)
        near = (place for place in places if _says(document, place, culprit))
        raise document.error(next(near, at), str(error)) from error
    except Exception as error:  # whatever the constructor of somebody's world raises
        told = " ".join(str(error).split())
        raise document.error(at, f"{type(error).__name__}: {told}") from error


def _says(document: Document, place: Location, name: str | None) -> bool:
    """Whether `name` is the key or the value at that place."""
    value: Any = document.data
    for part in place:
        value = value[part]
    return name is not None and (place[-1] == name or str(value) == name)


def _check_agent(spec: AgentSpec) -> None:
    model = {} if spec.model is None else {"model": spec.model}
    check_options(f"agent {spec.agent!r}", agent_class(spec.agent), {**spec.options, **model})


def _check_model(spec: dict[str, Any]) -> None:
    model_arguments({"name": "", **spec})


def make_env(spec: EnvSpec) -> TextEnv:
    """A new environment as the suite wants it."""
    return envs.make(spec.id, **envs.with_turns(spec.options, spec.max_turns))


def tasks_of(spec: EnvSpec) -> list[str]:
    """The ids of the tasks that a suite takes from one environment. Raises ConfigError."""
    env = make_env(spec)
    try:
        return choose_tasks(spec, env)
    finally:
        env.close()


def choose_tasks(spec: EnvSpec, env: TextEnv) -> list[str]:
    """The same, of an environment made before."""
    known = list(env.tasks(spec.split))
    if not known:
        raise ConfigError(f"split {spec.split!r} of this environment has no tasks")
    if isinstance(spec.tasks, int):
        if spec.tasks > len(known):
            raise ConfigError(f"{spec.tasks} tasks wanted, but split {spec.split!r} has {len(known)}")
        return known[: spec.tasks]
    if spec.tasks == "all":
        return known
    for task in sorted(set(spec.tasks).difference(known)):
        raise UnknownName(f"task of split {spec.split!r}", task, known)
    return list(spec.tasks)


def slug(text: str) -> str:
    """`text` as a name fit for files: lower case, letters, digits, dots, dashes; 100 at most."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower())[-100:].strip("-._") or "unnamed"
