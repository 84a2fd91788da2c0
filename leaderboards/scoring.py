"""The commands that score logged paths after the fact (cli.py has the rest)."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from turnbench.leaderboards import scoring_parts as parts

WAYS = "bottom10, last, max, mean, min, position or sum"
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
Token = Annotated[str, typer.Option(help=f"how tokens make a turn's number: {WAYS}")]
Turn = Annotated[str, typer.Option(help=f"how turns make a path's score: {WAYS}")]
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
Server = Annotated[
    str | None,
    typer.Option(help="ask the policy at this server's address (…/v1) by the name --policy instead"),
]
Alpha = Annotated[float, typer.Option(min=0, max=1, help="move the reference so far towards the policy")]
Scorers = Annotated[
    list[str] | None,
    typer.Option(
        help="a further scorer, as in a suite: the folder of a value function, or "
        "'{scorer: judge, model: {...}}'; may be repeated"
    ),
]
RepoCompat = Annotated[
    bool, typer.Option("--repo-compat", help="confidence as the released code has it, sign included")
]
Grid = Annotated[
    bool, typer.Option("--grid", help="also try all aggregations, chosen on half of the tasks")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object")]


def score(
    source: Source,
    reference: Annotated[str | None, typer.Option(help="checkpoint folder of the reference")] = None,
    policy: Policy = None,
    server: Server = None,
    tokenizer: Annotated[str | None, typer.Option(help="folder of the server's tokenizer")] = None,
    alpha: Alpha = 0.0,
    token: Token = "mean",
    turn: Turn = "mean",
    order: Order = "difference",
    text: Text = "auto",
    scorer: Scorers = None,
    window: Annotated[int, typer.Option(min=1, help="tokens in a group of DeepConf")] = 2048,
    repo_compat: RepoCompat = False,
    grid: Grid = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Score logged turns after the fact. Gives numbers by turn, best-of-N, AUROC, failure attribution.

    With a reference: Progress Advantage. With a policy: confidence as well. With the folder of a trained value
    function as --scorer: the return it expects after each turn. In --out stand the numbers by
    turn (scores.jsonl), the report (report.json), and of a run a copy of its log that shows them
    (turnbench view).

    Example: turnbench score runs/mine --policy runs/rl/model --reference turnbench/tiny --out runs/scored
    """
    from turnbench.leaderboards import scored
    from turnbench.leaderboards.said import WHOLE, Measures
    from turnbench.leaderboards.shown import refuse_other_run

    how = parts.aggregation(token, turn, order)
    if out is not None:  # before anything is computed
        refuse_other_run(source, out)
    cases, skipped = parts.cases_of(source)
    spec = parts.policy_spec(policy, server, tokenizer)
    other = None if reference is None else parts.reference_spec(reference, policy, alpha)
    kept = Measures(out)
    names = WHOLE if server is None else ("top",)  # a server gives no whole distributions
    said = parts.all_said(cases, kept, spec, [] if other is None else [other], text, names)
    theirs = said[1] if len(said) > 1 else None
    rated = scored.rate(cases, said[0], theirs, how, window=window, repo_compat=repo_compat)
    asked = parts.asked(scorer or [], cases, kept, rated)
    rated |= {one.name: one.rated for one in asked}
    strips = scored.STRIPS | {one.name: one.strip for one in asked}
    told: dict[str, Any] = {
        "source": str(source),
        "policy": policy,
        "reference": reference,
        "alpha": alpha,
        "aggregation": how._asdict(),
        "text": text,
        "repo_compat": repo_compat,
        "skipped": skipped,
        **scored.report(cases, rated, said if spec or reference or not asked else [], asked),
        **(parts.grid_of(cases, said) if grid else {}),
    }
    if out is not None:
        parts.write_results(source, out, cases, rated, strips, told)
    parts.print_results(told, json, out)


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
    """Try references for Progress Advantage. One half of the tasks chooses, the other tells what the
    choice is worth.

    Example: turnbench references runs/mine --policy runs/rl/model --reference sft=turnbench/tiny --alphas 0.25,0.5
    """
    from turnbench.leaderboards import scored
    from turnbench.leaderboards.choices import choose, halves
    from turnbench.leaderboards.said import Measures
    from turnbench.leaderboards.shown import choice_table

    how = parts.aggregation(token, turn, order)
    candidates = dict(parts.candidates(reference, policy, alphas))
    cases, _ = parts.cases_of(source)
    mine, *others = parts.all_said(cases, Measures(out), policy, list(candidates.values()), text)
    options = {
        name: scored.progress_of(cases, mine, theirs, how)
        for name, theirs in zip(candidates, others, strict=True)
    }
    told = {
        "policy": policy,
        "aggregation": how._asdict(),
        **choose(*halves(cases), options, next(iter(options))),
    }
    if json:
        print(json_module.dumps(told))
        return
    parts.show(choice_table("reference", told, 40))


def threshold(
    source: Source,
    reference: Reference,
    policy: Policy = None,
    false_alarms: Annotated[
        float, typer.Option(min=0, max=1, help="share of successes that may be flagged")
    ] = 0.1,
    running: Annotated[
        str, typer.Option(help=f"how the turns so far make the running score: {WAYS}")
    ] = "mean",
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
    """Choose the threshold of the agent `monitor`. The run must be of a train split.

    Example: turnbench threshold runs/train --reference turnbench/tiny --false-alarms 0.1
    """
    from turnbench.envs.errors import ConfigError
    from turnbench.leaderboards import choices, scored
    from turnbench.leaderboards.said import Measures

    how = parts.aggregation(token, running, order)
    cases, _ = parts.cases_of(source)
    splits = sorted({case.split for case in cases if not case.split.startswith("train")})
    if splits and not any_split:
        raise ConfigError(
            f"{source} has episodes of the split {splits[0]!r}: a threshold is chosen on a train split, or "
            "with --any-split on what you answer for"
        )
    mine, theirs = parts.all_said(cases, Measures(out), policy, [reference], text)
    rated = scored.progress_of(cases, mine, theirs, how)
    told = choices.threshold(cases, rated, how=running, after=after, false_alarms=false_alarms)
    if json:
        print(json_module.dumps(told))
        return
    print(f"threshold: {told['threshold']!r} (flags a running {running} below it, from turn {after} on)")
    for name, rates in (
        ("on these paths", told),
        ("chosen on one half, on the other", told["held_out"]),
    ):
        if rates is not None:
            print(
                f"  {name}: {parts.share(rates['detected'])} of failures, {parts.share(rates['false_alarms'])} of successes"
            )


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (score, references, threshold):
        app.command()(command)
