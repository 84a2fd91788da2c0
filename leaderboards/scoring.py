"""The commands that score logged paths after the fact (cli.py has the rest)."""

import json as json_module
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from turnbench.agents.readers import Spec
    from turnbench.agents.transcripts import Form
    from turnbench.agents.turn_scores import Aggregation
    from turnbench.leaderboards.cases import Case
    from turnbench.leaderboards.scored import Rated, Said

Source = Annotated[
    Path,
    typer.Argument(
        help="a run folder, a .jsonl.gz of trajectories, a JSON Lines file of conversations, or a folder of "
        "Who&When's files"
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        help="checkpoint folder of the policy; left out, it is the model that played, by the log's log-probs"
    ),
]
Reference = Annotated[str, typer.Option(help="checkpoint folder of the reference")]
Token = Annotated[str, typer.Option(help="how tokens make a turn's number")]
Turn = Annotated[str, typer.Option(help="how turns make a path's score")]
Order = Annotated[
    str, typer.Option(help="aggregate the 'difference' of log-probs, or take that of 'aggregates'")
]
Text = Annotated[
    str, typer.Option(help="'log' (its token ids), 'chat' or 'plain' (written anew), or 'auto'")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="folder for what models said, so that the same command goes on, and for the results"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object")]


def score(
    source: Source,
    reference: Annotated[str | None, typer.Option(help="checkpoint folder of the reference")] = None,
    policy: Policy = None,
    server: Annotated[
        str | None,
        typer.Option(help="ask the policy at this server's address (…/v1) by the name --policy instead"),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="folder of the server's tokenizer")] = None,
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="move the reference so far towards the policy")
    ] = 0.0,
    token: Token = "mean",
    turn: Turn = "mean",
    order: Order = "difference",
    text: Text = "auto",
    scorer: Annotated[
        list[str] | None,
        typer.Option(
            help="a further scorer, as in a suite: the folder of a value function, or "
            "'{scorer: judge, model: {...}}'; may be repeated"
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="tokens in a group of DeepConf")] = 2048,
    repo_compat: Annotated[
        bool, typer.Option("--repo-compat", help="confidence as the released code has it, sign included")
    ] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="also try all aggregations, chosen on half of the tasks")
    ] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Score logged turns: numbers by turn, best-of-N, AUROC, failure attribution.

    With a reference: Progress Advantage. With a policy: confidence as well. With the folder of a trained value
    function as --scorer: the return it expects after each turn. In --out stand the numbers by
    turn (scores.jsonl), the report (report.json), and of a run a copy of its log that shows them
    (turnbench view).

    Example: turnbench score runs/mine --policy runs/rl/model --reference turnbench/tiny --out runs/scored
    """
    from turnbench.leaderboards import scored
    from turnbench.leaderboards.choices import aggregation_grid, halves

    how = _aggregation(token, turn, order)
    cases, skipped = _cases(source)
    kept = scored.Measures(out)
    spec = _policy_spec(policy, server, tokenizer)
    mine = _policy(spec, cases, kept, text, whole=server is None)
    said = [mine]
    if reference is not None:
        other = _reference(reference, policy, alpha)
        form = _form("log" if spec is None else text)
        said.append(scored.say(other, cases, kept, text=form, writer=spec, tell=_tell))
    if len(said) > 1 or spec is not None:
        scored.refuse_empty(said, cases)
    rated = scored.rate(
        cases, mine, said[1] if len(said) > 1 else None, how, window=window, repo_compat=repo_compat
    )
    strips = dict(scored.STRIPS)
    for name, strip, values in _further(scorer or [], cases):
        rated[name], strips[name] = values, strip
    told: dict[str, Any] = {
        "source": str(source),
        "policy": policy,
        "reference": reference,
        "alpha": alpha,
        "aggregation": how._asdict(),
        "text": text,
        "repo_compat": repo_compat,
        "skipped": skipped,
        **scored.report(cases, rated, said),
    }
    if grid and len(said) > 1:
        told["grid"] = aggregation_grid(*halves(cases), *said)
    if out is not None:
        _write(source, out, cases, rated, strips, told)
    _print(told, json, out)


def references(
    source: Source,
    policy: Annotated[str, typer.Option(help="checkpoint folder of the policy")],
    reference: Annotated[
        list[str], typer.Option(help="NAME=FOLDER of a candidate; the first is the default; repeat")
    ],
    alphas: Annotated[
        str, typer.Option(help="also the first, moved so far towards the policy: as in 0.2,0.5")
    ] = "",
    token: Token = "mean",
    turn: Turn = "mean",
    order: Order = "difference",
    text: Text = "auto",
    out: Out = None,
    json: Json = False,
) -> None:
    """Try references: one half of the tasks chooses, the other tells what the choice is worth.

    Example: turnbench references runs/mine --policy runs/rl/model --reference sft=turnbench/tiny --alphas 0.25,0.5
    """
    from turnbench.leaderboards import scored
    from turnbench.leaderboards.choices import choose, halves
    from turnbench.leaderboards.shown import choice_table

    how = _aggregation(token, turn, order)
    candidates = dict(_candidates(reference, policy, alphas))
    cases, _ = _cases(source)
    kept = scored.Measures(out)
    mine = _policy(policy, cases, kept, text, whole=False)
    options: dict[str, Mapping[str, Rated]] = {}
    for name, spec in candidates.items():
        theirs = scored.say(spec, cases, kept, text=_form(text), writer=policy, tell=_tell)
        scored.refuse_empty([mine, theirs], cases)
        options[name] = scored.progress_of(cases, mine, theirs, how)
    told = {
        "policy": policy,
        "aggregation": how._asdict(),
        **choose(*halves(cases), options, next(iter(options))),
    }
    if json:
        print(json_module.dumps(told))
        return
    _show(choice_table("reference", told, 40))


def threshold(
    source: Source,
    reference: Reference,
    policy: Policy = None,
    false_alarms: Annotated[
        float, typer.Option(min=0, max=1, help="share of successes that may be flagged")
    ] = 0.1,
    running: Annotated[str, typer.Option(help="how the turns so far make the running score")] = "mean",
    after: Annotated[int, typer.Option(min=1, help="turns before the first judgement")] = 2,
    token: Token = "mean",
    order: Order = "difference",
    text: Text = "auto",
    any_split: Annotated[
        bool, typer.Option("--any-split", help="accept a run that isn't of a train split")
    ] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Choose the threshold of the agent `monitor`, on a run of a train split.

    Example: turnbench threshold runs/train --reference turnbench/tiny --false-alarms 0.1
    """
    from turnbench.envs.errors import ConfigError
    from turnbench.leaderboards import choices, scored

    how = _aggregation(token, running, order)
    cases, _ = _cases(source)
    splits = sorted({case.split for case in cases if not case.split.startswith("train")})
    if splits and not any_split:
        raise ConfigError(
            f"{source} has episodes of the split {splits[0]!r}: a threshold is chosen on a train split, or "
            "with --any-split on what you answer for"
        )
    kept = scored.Measures(out)
    mine = _policy(policy, cases, kept, text, whole=False)
    form = _form("log" if policy is None else text)
    theirs = scored.say(reference, cases, kept, text=form, writer=policy, tell=_tell)
    scored.refuse_empty([mine, theirs], cases)
    rated = scored.progress_of(cases, mine, theirs, how)
    told = choices.threshold(cases, rated, how=running, after=after, false_alarms=false_alarms)
    if json:
        print(json_module.dumps(told))
        return
    print(
        f"threshold: {told['threshold']:.6g} (flags a running {running} below it, from turn {after} on)"
    )
    for name, rates in (
        ("on these paths", told),
        ("chosen on one half, on the other", told["held_out"]),
    ):
        if rates is not None:
            print(
                f"  {name}: {_share(rates['detected'])} of failures, {_share(rates['false_alarms'])} of successes"
            )


# --- parts ----------------------------------------------------------------------------------------


def _aggregation(token: str, turn: str, order: str) -> "Aggregation":
    from turnbench.agents.turn_scores import Aggregation

    return Aggregation(token, turn, order).check()  # type: ignore[arg-type]


def _form(text: str) -> "Form":
    from turnbench.agents.transcripts import FORMS
    from turnbench.envs.errors import UnknownName

    if text not in FORMS:
        raise UnknownName("form of text", text, FORMS)
    return cast("Form", text)


def _cases(source: Path) -> tuple[list["Case"], int]:
    from turnbench.leaderboards.cases import read_cases

    found = read_cases(source)
    return found.cases, found.skipped


def _policy_spec(policy: str | None, server: str | None, tokenizer: str | None) -> "Spec | None":
    from turnbench.envs.errors import ConfigError

    if server is None:
        return policy
    if policy is None or tokenizer is None:
        raise ConfigError("--server needs --policy (the model's name there) and --tokenizer (a folder)")
    return {"backend": "api", "model": policy, "base_url": server, "tokenizer": tokenizer}


def _policy(
    spec: "Spec | None", cases: Sequence["Case"], kept: Any, text: str, *, whole: bool
) -> "Said":
    """What the policy says; without one, what the model that played said."""
    from turnbench.leaderboards import scored

    if spec is None:
        return scored.played(cases)
    names = scored.WHOLE if whole else ()
    return scored.say(spec, cases, kept, text=_form(text), names=names, tell=_tell)


def _reference(reference: str, policy: str | None, alpha: float) -> "Spec":
    from turnbench.envs.errors import ConfigError

    if not alpha:
        return reference
    if policy is None:
        raise ConfigError("--alpha moves the reference towards --policy, which is left out")
    return {"path": reference, "merge": policy, "alpha": alpha}


def _candidates(given: Sequence[str], policy: str, alphas: str) -> Iterator[tuple[str, "Spec"]]:
    from turnbench.envs.errors import ConfigError

    first = ""
    for text in given:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"--reference is {text!r}; NAME=FOLDER is wanted")
        first = first or text
        yield name, folder
    name, _, folder = first.partition("=")
    for part in filter(None, (part.strip() for part in alphas.split(","))):
        try:
            alpha = float(part)
        except ValueError as error:
            raise ConfigError(f"--alphas has {part!r}; numbers from 0 to 1 are wanted") from error
        yield f"{name}+{alpha:g}", {"path": folder, "merge": policy, "alpha": alpha}


def _further(
    specs: Sequence[str], cases: Sequence["Case"]
) -> Iterator[tuple[str, str, dict[str, "Rated"]]]:
    """Scorers as a suite has them, asked about the paths: name, strip, and what they say."""
    import numpy as np
    import yaml

    from turnbench.agents.scorers import make_scorer
    from turnbench.envs.errors import ConfigError

    for text in specs:
        try:
            spec = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--scorer {text!r} is no YAML: {error}") from error
        if not isinstance(spec, str | dict):
            raise ConfigError(f"--scorer {text!r}: a name or a mapping with the key 'scorer' is wanted")
        made: Any = make_scorer(spec)
        paths = [case.path for case in cases]
        turns = made.turns(paths) if hasattr(made, "turns") else [[] for _ in paths]
        scores = (
            [made.path_score(numbers) for numbers in turns]
            if hasattr(made, "path_score")
            else made.score(paths, np.random.default_rng(0))
        )
        name = spec if isinstance(spec, str) else getattr(made, "name", "") or str(spec["scorer"])
        name += " (oracle)" if made.oracle else ""
        strip = getattr(made, "strip", "") or name
        yield name, strip, {c.id: (t, s) for c, t, s in zip(cases, turns, scores, strict=True)}


def _tell(name: str, done: int, total: int) -> None:
    from turnbench.leaderboards.cli import console

    console(stderr=True).print(f"{name}: {done} of {total} paths read", markup=False, soft_wrap=True)


def _write(
    source: Path,
    out: Path,
    cases: Sequence["Case"],
    rated: Mapping[str, Mapping[str, "Rated"]],
    strips: Mapping[str, str],
    told: Mapping[str, Any],
) -> None:
    from turnbench.leaderboards.scored import turn_rows
    from turnbench.leaderboards.shown import drawn, write_shown

    rows = "".join(f"{json_module.dumps(row, ensure_ascii=False)}\n" for row in turn_rows(cases, rated))
    (out / "scores.jsonl").write_text(rows, encoding="utf-8", errors="replace")
    (out / "report.json").write_text(json_module.dumps(told, indent=1) + "\n", encoding="utf-8")
    if (source / "log.jsonl").is_file():
        write_shown(source, out, drawn(rated, strips))


def _print(told: Mapping[str, Any], json: bool, out: Path | None) -> None:
    if json:
        print(json_module.dumps(told))
        return
    from turnbench.leaderboards.shown import attribution_table, choice_table, score_table

    _show(score_table(told))
    if (table := attribution_table(told)) is not None:
        _show(table)
    if "grid" in told:
        _show(choice_table("aggregation", told["grid"], 10))
        print(f"the best of the grid if labels meant nothing: {told['grid']['null']}")
    for why, count in told["failed"].items():
        print(f"not scored, {count} paths: {why}")
    if told["turns_cut_from_the_left"]:
        print(
            f"{told['turns_cut_from_the_left']} turns of {told['paths_cut_from_the_left']} paths were read "
            "without the beginning of their prompt, as the context is too short"
        )
    if out is not None:
        print(f"wrote {out / 'scores.jsonl'} and {out / 'report.json'}")


def _show(table: "Table") -> None:
    from turnbench.leaderboards.cli import console

    console().print(table)


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (score, references, threshold):
        app.command()(command)
