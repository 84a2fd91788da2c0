"""Suite: what is measured - tasks x agents x seeds - read from YAML."""

import hashlib
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnbench import envs
from turnbench.agents import agent_class, check_options, model_spec
from turnbench.envs.errors import ConfigError, TurnbenchError, UnknownName
from turnbench.leaderboards.yamlfile import Document, parse_yaml, read_yaml

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """A piece of a suite: unknown keys are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvSpec(Strict):
    """One environment of a suite and the tasks taken from it."""

    id: str = Field(description="environment id, as `turnbench list envs` shows them")
    split: str = Field("test", description="which split the tasks come from")
    tasks: Literal["all"] | Count | list[str] = Field(
        "all", description="all tasks of the split, the first so many, or a list of task ids"
    )
    max_turns: Count | None = Field(
        None, description="turns before truncation; null for the world's own"
    )
    options: dict[str, Any] = Field({}, description="keyword arguments of the environment")


class AgentSpec(BaseModel):
    """One row of the board: an agent, the model it asks, and the agent's own options beside them."""

    model_config = ConfigDict(extra="allow", frozen=True)

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
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    envs: Annotated[list[EnvSpec], Field(min_length=1)]
    models: dict[Name, dict[str, Any]] = {}
    agents: Annotated[dict[Name, AgentSpec], Field(min_length=1)]
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: a seed appears twice")
        for name, spec in self.agents.items():
            if spec.model is not None and spec.model not in self.models:
                raise ValueError(f"agents.{name}: {UnknownName('model', spec.model, self.models)}")
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

        `model` is "backend:target", as in "hf:FOLDER" or "api:NAME". Raises UnknownName.
        """
        rows, models, worlds = dict(self.agents), dict(self.models), list(self.envs)
        for name in agents or ():
            if name not in rows:
                raise UnknownName("agent row", name, rows)
        if agents:
            rows = {name: rows[name] for name in agents}
        if model is not None:
            name = slug(model)
            models = {name: model_spec(model)}
            rows = {k: r.model_copy(update={"model": name}) if r.model else r for k, r in rows.items()}
        if tasks is not None:
            worlds = [spec.model_copy(update={"tasks": tasks_of(spec)[:tasks]}) for spec in worlds]
        return self.model_copy(update={"agents": rows, "models": models, "envs": worlds})


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


def load_suite(name: str) -> Suite:
    """A shipped suite by name, or a suite file by path. Raises UnknownName, ConfigError."""
    return parse_suite(find_suite(name))


def find_suite(name: str) -> Document:
    """The YAML of a shipped suite or of a suite file."""
    shipped = shipped_suites()
    if name in shipped:
        return parse_yaml(shipped[name].read_text(encoding="utf-8"), f"{name}.yaml")
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return read_yaml(path)
    raise UnknownName("suite", name, shipped)


def parse_suite(document: Document) -> Suite:
    """The suite that a YAML document describes, checked as far as possible without running it."""
    _refuse_unknown_keys(document)
    try:
        suite = Suite.model_validate(document.data)
    except ValidationError as error:
        raise document.explain(error) from error
    _check_agents(suite, document)
    _check_envs(suite, document)
    return suite


def _refuse_unknown_keys(document: Document) -> None:
    """Before pydantic, so that the error can name the neighbours of a misspelt key."""
    data = document.data
    sections: list[tuple[Any, type[Strict], tuple[str | int, ...]]] = [(data, Suite, ())]
    sections.append((data.get("limits"), Limits, ("limits",)))
    listed = data.get("envs")
    for k, env in enumerate(listed if isinstance(listed, list) else ()):
        sections.append((env, EnvSpec, ("envs", k)))
    for section, model, at in sections:
        for key in section if isinstance(section, dict) else ():
            if key not in model.model_fields:
                raise document.error((*at, key), str(UnknownName("key", key, model.model_fields)))


def _check_agents(suite: Suite, document: Document) -> None:
    for name, spec in suite.agents.items():
        at = ("agents", name)
        try:
            check_options(
                f"agent {spec.agent!r}", agent_class(spec.agent), spec.options, given={"model"}
            )
        except TurnbenchError as error:
            raise document.error((*at, _culprit(spec, error)), str(error)) from error


def _culprit(spec: AgentSpec, error: TurnbenchError) -> str:
    name = getattr(error, "name", "agent")
    return name if name in spec.options else "agent"


def _check_envs(suite: Suite, document: Document) -> None:
    for k, spec in enumerate(suite.envs):
        try:
            tasks_of(spec)
        except (TurnbenchError, TypeError, ValueError) as error:
            raise document.error(("envs", k), " ".join(str(error).split())) from error


def make_env(spec: EnvSpec) -> Any:
    """A new environment as the suite wants it."""
    turns = {} if spec.max_turns is None else {"max_turns": spec.max_turns}
    return envs.make(spec.id, **spec.options, **turns)


def tasks_of(spec: EnvSpec) -> list[str]:
    """The ids of the tasks that a suite takes from one environment. Raises ConfigError."""
    env = make_env(spec)
    try:
        known = list(env.tasks(spec.split))
    finally:
        env.close()
    if spec.tasks == "all":
        return known
    if isinstance(spec.tasks, int):
        if spec.tasks > len(known):
            raise ConfigError(f"{spec.tasks} tasks wanted, but split {spec.split!r} has {len(known)}")
        return known[: spec.tasks]
    for task in spec.tasks:
        if task not in known:
            raise UnknownName(f"task of split {spec.split!r}", task, known)
    if len(set(spec.tasks)) < len(spec.tasks):
        raise ConfigError("a task appears twice")
    if not spec.tasks:
        raise ConfigError("the list of tasks is empty")
    return spec.tasks


def slug(text: str) -> str:
    """`text` as a name fit for files: lower case, letters, digits, dots, dashes."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._") or "unnamed"


def episodes_of(suite: Suite) -> Iterator[tuple[str, int, str, int]]:
    """(agent row, index of the environment, task, seed) of every episode, agents innermost."""
    for k, spec in enumerate(suite.envs):
        for task in tasks_of(spec):
            for seed in suite.seeds:
                for agent in suite.agents:
                    yield agent, k, task, seed
