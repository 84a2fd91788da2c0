"""The entry format `leaderboard-entry/1`: what one system did on a suite, as one YAML file.

Everything but `submitter`, `notes`, `code_url` and `file.url` is computed from the log, and
`turnbench verify` computes it again. Unknown keys are errors. There is no status: whether an entry is
verified is a fact about a verification, which stands beside it in a file of its own (board.py).
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from turnbench.leaderboards.suite import Name, Strict

SCHEMA = "leaderboard-entry/1"
MAX_BYTES = 512 * 1024  # of an entry's YAML

Hex16 = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
Url = Annotated[str, Field(pattern=r"^https://[^\s<>\"'`]{1,500}$")]
Text = Annotated[str, Field(max_length=2000)]
Line = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0)]


class SuiteRef(Strict):
    """The suite an entry belongs to; only entries with the same digest are compared."""

    name: Name
    version: Annotated[int, Field(ge=1)]
    digest: Hex16 = Field(description="of the protocol: environments, tasks, seeds, limits")


class Submitter(Strict):
    """Who answers for an entry."""

    name: Line
    org: Line = ""
    contact: Line = Field("", description="an address or a handle, shown on the board")


class SystemSpec(Strict):
    """The agent with its options and the whole specification of the model it asks."""

    name: Name = Field(description="the suite's row")
    agent: Line
    options: dict[str, Any]
    model: dict[str, Any] | None
    checkpoint: Hex16 | None = Field(description="digest of a local model's folder")
    value: Hex16 | None = Field(None, description="digest of a value function's folder")


class Score(Strict):
    """A mean with its 95 % interval by cluster bootstrap over tasks."""

    mean: Number
    ci95: Annotated[list[Number], Field(min_length=2, max_length=2)]


class Episodes(Strict):
    """How many episodes the suite wants, how many failed outside the agent, how many aren't played."""

    wanted: Natural
    missing: Natural
    left: Natural


class Passes(Strict):
    """pass@k (any of k episodes of a task succeeds) and pass^k (all do), for k = 1, 2, ..."""

    at_k: list[Number]
    hat_k: list[Number]


class World(BaseModel):
    """What a log's header says of an environment (provenance.world_of)."""

    data: str
    returns: Annotated[list[Number], Field(min_length=2, max_length=2)] | None
    tasks: list[str]
    nondeterministic: bool = False


class Outcomes(Strict):
    """Episodes by how they ended."""

    ok: Natural
    truncated: Natural
    timeout: Natural
    agent_error: Natural
    env_error: Natural
    infra_error: Natural


class Result(Strict):
    """What the system did in one environment."""

    env: Line
    split: Line
    episodes: Episodes
    tasks: Natural = Field(description="tasks with at least one counted episode")
    score: Score | None = Field(description="mean return of the submitted paths")
    clipped: Score | None = Field(
        None, description="the same with returns below 0 counted as 0, where the world has such"
    )
    per_seed: dict[str, Number]
    per_task: list[Number | None] = Field(
        description="mean return of each task over the seeds, in the suite's order of tasks"
    )
    success: Score | None = Field(description="share of episodes solved; null where nobody tells")
    passes: Passes | None = Field(description="null with one seed, or where success is unknown")
    bounds: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = Field(
        description="the mean with every missing episode at the lowest, or highest, return"
    )
    outcomes: Outcomes
    turns: Number | None
    nondeterministic: bool = Field(
        False, description="the world declares that a replay may differ, so it can't be verified"
    )
    checks: dict[str, Score | None] | None = Field(
        None, description="means of what the world itself checked at the end of episodes"
    )
    selectors: dict[str, Score | None] | None = Field(
        None, description="what other choices from the same populations would have scored"
    )
    lost_paths: Natural | None = None


class Compute(Strict):
    """What the run cost. `cost` is in US dollars, null where a price is unknown."""

    model_calls: Natural
    prompt_tokens: Natural
    cached_tokens: Natural
    completion_tokens: Natural
    cost: Annotated[Number, Field(ge=0)] | None
    env_steps: Natural
    replayed_steps: Natural
    forks: Natural
    cache_hits: Natural
    shared_tokens: Natural
    episode_seconds: Annotated[Number, Field(ge=0)]


class Provenance(Strict):
    """What made the result: versions, digests of turnbench's code and of each world's data."""

    versions: dict[str, Line]
    code: Hex16
    worlds: list[Line]


class TrajectoryFile(Strict):
    """The trajectories as a file, which travels outside git."""

    name: FileName
    sha256: Sha256
    bytes: Natural
    url: Url | None = None


class Trajectories(Strict):
    """The episodes behind the numbers: JSON Lines, a header and one line an episode."""

    episodes: Natural
    raw_bytes: Natural = Field(description="size of all lines, uncompressed")
    merkle_root: Sha256 = Field(description="over the lines, header first (trajectories.py)")
    actions: Sha256 = Field(description="over what was played: equal for copied transcripts")
    file: TrajectoryFile | None = None


class Entry(Strict):
    """One system on one suite."""

    schema_: Literal["leaderboard-entry/1"] = Field(alias="schema")
    entry: Name = Field(description="derived from system, model, suite and code")
    suite: SuiteRef
    track: Literal["standard", "custom", "oracle"] = Field(
        description="oracle: saw true rewards before choosing; custom: an agent that isn't shipped"
    )
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    submitter: Submitter | None = None
    code_url: Url | None = Field(None, description="where a custom agent's code is")
    notes: Text = ""
    system: SystemSpec
    privileges: list[Line]
    complete: bool
    score: Score | None
    results: list[Result]
    compute: Compute
    protocol: dict[str, Any]
    provenance: Provenance
    trajectories: Trajectories


def plain(entry: Entry) -> dict[str, Any]:
    """The entry as YAML holds it, without what has its default."""
    return entry.model_dump(by_alias=True, exclude_defaults=True, mode="json")


def json_schema() -> str:
    """The format as JSON Schema, as it is shipped in data/leaderboard-entry-1.json."""
    schema: Mapping[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Entry.model_json_schema(by_alias=True),
        "title": SCHEMA,
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
