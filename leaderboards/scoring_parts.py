"""What the commands of scoring.py are made of."""

import itertools
import json as json_module
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.table import Table

    from turnbench.agents.readers import Spec
    from turnbench.agents.transcripts import Form
    from turnbench.agents.turn_scores import Aggregation, Rated
    from turnbench.leaderboards.cases import Case
    from turnbench.leaderboards.said import Asked, Measures, Said


def aggregation(token: str, turn: str, order: str) -> "Aggregation":
    """How tokens and turns become a score. Raises UnknownName."""
    from turnbench.agents.turn_scores import Aggregation

    return Aggregation(token, turn, order).check()  # type: ignore[arg-type]


def form_of(text: str) -> "Form":
    """The form of text that is named. Raises UnknownName."""
    from turnbench.agents.transcripts import FORMS
    from turnbench.envs.errors import UnknownName

    if text not in FORMS:
        raise UnknownName("form of text", text, FORMS)
    return cast("Form", text)


def cases_of(source: Path) -> tuple[list["Case"], int]:
    """The source's cases, and how many of its paths can't be scored. Raises LogError."""
    from turnbench.leaderboards.cases import read_cases

    found = read_cases(source)
    return found.cases, found.skipped


def policy_spec(policy: str | None, server: str | None, tokenizer: str | None) -> "Spec | None":
    """What stands for the policy: its folder, the model at a server, or None. Raises ConfigError."""
    from turnbench.envs.errors import ConfigError

    if server is None:
        return policy
    if policy is None or tokenizer is None:
        raise ConfigError("--server needs --policy (the model's name there) and --tokenizer (a folder)")
    return {"backend": "api", "model": policy, "base_url": server, "tokenizer": tokenizer}


def all_said(
    cases: Sequence["Case"],
    kept: "Measures",
    policy: "Spec | None",
    references: Sequence["Spec"],
    text: str,
    names: Sequence[str] = (),
) -> list["Said"]:
    """What the policy says, or without one the model that played, and then each reference. All read as much
    as the smallest of their contexts holds. Raises ConfigError where nothing can be read."""
    from turnbench.agents.readers import least_context
    from turnbench.envs.errors import ConfigError
    from turnbench.leaderboards import said

    if policy is None and references and text in ("chat", "plain"):
        raise ConfigError(
            f"--text {text} needs a --policy: without one its log-probs are the log's, and so are the tokens"
        )
    models = [*([] if policy is None else [policy]), *references]
    context = least_context(*models)
    form = form_of(text if policy is not None or not references else "log")

    def say(spec: "Spec", **options: Any) -> "Said":
        return said.say(spec, cases, kept, text=form, context=context, tell=tell, **options)

    found = [said.played(cases) if policy is None else say(policy, names=names)]
    found += [say(reference, writer=policy) for reference in references]
    for theirs in found[1:] or ([] if policy is None else [found[0]]):
        said.refuse_empty([found[0], theirs], cases)
    return found


def grid_of(cases: Sequence["Case"], said: Sequence["Said"]) -> dict[str, Any]:
    """The report's part on all aggregations; empty without a reference."""
    from turnbench.leaderboards.choices import aggregation_grid, halves

    return {"grid": aggregation_grid(*halves(cases), *said)} if len(said) > 1 else {}


def reference_spec(reference: str, policy: str | None, alpha: float) -> "Spec":
    """What stands for the reference, which `alpha` moves towards the policy. Raises ConfigError."""
    from turnbench.envs.errors import ConfigError

    if not alpha:
        return reference
    if policy is None:
        raise ConfigError("--alpha moves the reference towards --policy, which is left out")
    return {"path": reference, "merge": policy, "alpha": alpha}


def candidates(given: Sequence[str], policy: str, alphas: str) -> Iterator[tuple[str, "Spec"]]:
    """References by name: those given, and the first moved towards the policy. Raises ConfigError."""
    from turnbench.envs.errors import ConfigError

    first, names = "", set[str]()
    for text in given:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"--reference is {text!r}; NAME=FOLDER is wanted")
        if name in names:
            raise ConfigError(f"--reference names two {name!r}")
        names.add(name)
        first = first or text
        yield name, folder
    name, _, folder = first.partition("=")
    for part in filter(None, (part.strip() for part in alphas.split(","))):
        try:
            alpha = float(part)
        except ValueError as error:
            raise ConfigError(f"--alphas has {part!r}; numbers from 0 to 1 are wanted") from error
        yield f"{name}+{alpha:g}", {"path": folder, "merge": policy, "alpha": alpha}


def asked(
    specs: Sequence[str], cases: Sequence["Case"], kept: "Measures", taken: Iterable[str]
) -> list["Asked"]:
    """What further scorers, given as in a suite, say of the paths; none has a name that is `taken`.
    Raises ConfigError."""
    import yaml

    from turnbench.envs.errors import ConfigError
    from turnbench.leaderboards import said

    found = list["Asked"]()
    for text in specs:
        try:
            spec = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--scorer {text!r} is no YAML: {error}") from error
        if not isinstance(spec, str | dict):
            raise ConfigError(f"--scorer {text!r}: a name or a mapping with the key 'scorer' is wanted")
        one = said.ask(spec, cases, kept, tell=tell)
        known = {*taken, *(other.name for other in found)}
        numbers = (f" ({k})" if k > 1 else "" for k in itertools.count(1))
        again = next(number for number in numbers if one.name + number not in known)
        found.append(one._replace(name=one.name + again, strip=one.strip + again))
    return found


def tell(name: str, done: int, total: int) -> None:
    """Tell how far a model has read."""
    from turnbench.leaderboards.cli import console

    console(stderr=True).print(f"{name}: {done} of {total} paths read", markup=False, soft_wrap=True)


def write_results(
    source: Path,
    out: Path,
    cases: Sequence["Case"],
    rated: Mapping[str, Mapping[str, "Rated"]],
    strips: Mapping[str, str],
    told: Mapping[str, Any],
) -> None:
    """Write the numbers by turn, the report, and of a run a copy of its log that shows them."""
    from turnbench.leaderboards.scored import turn_rows
    from turnbench.leaderboards.shown import drawn, write_shown

    rows = "".join(f"{json_module.dumps(row, ensure_ascii=False)}\n" for row in turn_rows(cases, rated))
    (out / "scores.jsonl").write_text(rows, encoding="utf-8", errors="replace")
    (out / "report.json").write_text(json_module.dumps(told, indent=1) + "\n", encoding="utf-8")
    if (source / "log.jsonl").is_file():
        write_shown(source, out, drawn(rated, strips))


def print_results(told: Mapping[str, Any], json: bool, out: Path | None) -> None:
    """Print the report: as JSON, or as tables with what couldn't be scored."""
    if json:
        print(json_module.dumps(told))
        return
    from turnbench.leaderboards.shown import attribution_table, choice_table, score_table

    show(score_table(told))
    if (table := attribution_table(told)) is not None:
        show(table)
    if "grid" in told:
        show(choice_table("aggregation", told["grid"], 10))
        print(f"the best of the grid if labels meant nothing: {told['grid']['null']}")
    for why, count in told["failed"].items():
        print(f"not scored, {count} paths: {why}")
    for name, count in told["without_verdict"].items():
        print(f"{name}: no verdict on {count} paths, which score 0.5")
    if told["turns_cut_from_the_left"]:
        print(
            f"{told['turns_cut_from_the_left']} turns of {told['paths_cut_from_the_left']} paths were read "
            "without the beginning of their prompt, as the context is too short"
        )
    if out is not None:
        print(f"wrote {out / 'scores.jsonl'} and {out / 'report.json'}")


def show(table: "Table") -> None:
    """Print a table."""
    from turnbench.leaderboards.cli import console

    console().print(table)


def share(value: float | None) -> str:
    """A share in per cent."""
    return "none" if value is None else f"{value:.1%}"
