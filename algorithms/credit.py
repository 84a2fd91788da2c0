"""Credit, looked at: what a trained critic tells apart, and where a trajectory's credit goes.

The run of any trainer with a critic serves: its newest checkpoint gives the values, its config says how
they become credit. Pictures are one HTML file without scripts.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from turnbench.agents import shipped_path
from turnbench.agents.hf import HfModel
from turnbench.algorithms import advantages, checkpoint
from turnbench.algorithms.batch import Episode, collate
from turnbench.algorithms.collect import Collector
from turnbench.algorithms.mpo import Mpo
from turnbench.algorithms.policy import Policy, load_model, with_adapters
from turnbench.algorithms.ppo import Ppo, Sao, TurnPpo, estimate
from turnbench.algorithms.rl import Said
from turnbench.algorithms.settings import reread
from turnbench.envs.errors import ConfigError, LogError

KINDS: dict[str, type[Ppo]] = {"mpo": Mpo, "ppo": Ppo, "sao": Sao, "turn_ppo": TurnPpo}


@dataclass(frozen=True)
class Credit:
    """One trajectory's credit in units of reward: each turn's tokens as text with their credit and
    values, and the share of the values' variance that lies between turns (NaN where they don't vary)."""

    episode: Episode
    tokens: list[list[str]]
    credit: list[list[float]]
    values: list[list[float]]
    between: float


class Critic:
    """The policy and critic of a training run's newest checkpoint. Raises ConfigError."""

    def __init__(self, run: Path) -> None:
        found = checkpoint.newest(run)
        if found is None or not (run / "config.json").is_file():
            raise ConfigError(f"{run} is no training run with a checkpoint")
        self.settings = reread(KINDS, run / "config.json").model_copy(
            update={"whiten": "none", "kl": 0.0}
        )
        base = shipped_path(self.settings.model)
        model, self.tokenizer = load_model(base if self.settings.lora else found)
        if self.settings.lora:
            model = with_adapters(model, self.settings.lora, 0, found)
        self.policy = Policy(model, self.settings.critic).eval()
        self.policy.load_critic(found)

    def play(self, episodes: int) -> list[Episode]:
        """New episodes of the policy on the run's own tasks."""
        settings = self.settings
        model = HfModel.of(self.policy.model, self.tokenizer, sampling=settings.play.sampling)
        collector = Collector(settings.env, settings.play, settings.seed + 1)
        try:
            return collector.collect(model, (settings.steps,), episodes, 1, (0, 1))
        finally:
            model.close()
            collector.close()

    @torch.no_grad()
    def judge(self, episodes: Sequence[Episode]) -> list[Credit]:
        """The credit of each episode that has any turn. Raises LogError where token ids are missing, or
        aren't this model's."""
        return [self._judge(episode) for episode in episodes if episode.path.turns]

    def _judge(self, episode: Episode) -> Credit:
        batch = collate([episode], bootstrap=self.settings.bootstrap)
        words = self.policy.model.get_input_embeddings().num_embeddings
        if int(batch.ids.max()) >= words:
            raise LogError(f"task {episode.path.task.id} was played with another model's vocabulary")
        reading = self.policy.read(batch, policy=False)
        assert reading.said is not None
        said = reading.said.double()
        spoken = Said(batch.before(said), batch.after_turns(said), batch.bootstrap(said))
        credit, _ = estimate(self.settings, batch, spoken)
        turns = batch.turns
        per_turn = [turns.index[0].eq(k) & turns.mask[0] for k in range(turns.valid.shape[1])]
        ids = batch.ids[batch.acts]
        return Credit(
            episode,
            [[self.tokenizer.decode([token]) for token in ids[chosen].tolist()] for chosen in per_turn],
            [credit[0, chosen].tolist() for chosen in per_turn],
            [spoken.values[0, chosen].tolist() for chosen in per_turn],
            float(advantages.between_turn_share(turns, spoken.values)[0]),
        )


def strips(one: Credit) -> dict[str, list[float]]:
    """What a run's page shows by turn: the turn's credit, and what the critic expected before it; not a
    number where a turn has no tokens. The names carry the unit (agents/turn_scores.py)."""
    means = iter(np.mean(turn) for turn in one.credit)
    starts = iter(turn[0] for turn in one.values)
    said = [bool(turn.tokens and turn.tokens.ids) for turn in one.episode.path.turns]
    return {
        "credit [reward]": [float(next(means)) if spoke else math.nan for spoke in said],
        "value before the turn [reward]": [float(next(starts)) if spoke else math.nan for spoke in said],
    }


def summary(judged: Sequence[Credit]) -> dict[str, float]:
    """Over trajectories: the median share of the critic's variance that lies between turns, how often it
    is above one half, and their number. Both are NaN where no trajectory's values vary."""
    shares = np.array([one.between for one in judged])
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return {"trajectories": float(len(judged)), "median": float("nan"), "above_half": float("nan")}
    return {
        "trajectories": float(len(judged)),
        "median": float(np.median(shares)),
        "above_half": float((shares > 0.5).mean()),
    }


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Credit</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 15px/1.7 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
  color: #1c1c1c; background: #fff; }}
.seen {{ color: #666; white-space: pre-wrap; }} .turn {{ margin: .6em 0 1em; }}
.said span {{ padding: .1em 0; border-radius: 2px; white-space: pre-wrap; }}
.number {{ float: right; font-variant-numeric: tabular-nums; color: #555; }}
</style></head><body>
<h1>Credit, turn by turn</h1>
<p>Blue tokens were better than the critic expected, red ones worse; the deepest colour is {top:.3g}.
The number at the right is the turn's mean. Hover over a token for its own credit and value.</p>
{body}
</body></html>
"""


def page(judged: Sequence[Credit]) -> str:
    """The trajectories as one HTML page; model text is escaped and nothing in it runs."""
    top = max((abs(c) for one in judged for turn in one.credit for c in turn), default=0.0)
    return PAGE.format(top=top, body="\n".join(_trajectory(one, top or 1.0) for one in judged))


def _trajectory(one: Credit, top: float) -> str:
    path = one.episode.path
    head = html.escape(
        f"task {path.task.id}, seed {path.task.seed}: return {path.ret:g}, {path.outcome}"
    )
    played = [turn for turn in path.turns if turn.tokens and turn.tokens.ids]
    parts = zip(played, one.tokens, one.credit, one.values, strict=False)
    rows = [_turn(turn.observation, words, credit, values, top) for turn, words, credit, values in parts]
    return f"<section><h2>{head}</h2>{''.join(rows)}</section>"


def _turn(seen: str, tokens: list[str], credit: list[float], values: list[float], top: float) -> str:
    spans = "".join(_token(*token, top) for token in zip(tokens, credit, values, strict=True))
    mean = f"{np.mean(credit):+.3f}"
    return (
        f'<div class="turn"><span class="number">{mean}</span>'
        f'<div class="seen">{html.escape(seen)}</div><div class="said">{spans}</div></div>'
    )


def _token(text: str, credit: float, value: float, top: float) -> str:
    hue = "37, 99, 235" if credit > 0 else "220, 38, 38"
    told = f"credit {credit:+.4f}, value before it {value:.4f}"
    style = f"background: rgba({hue}, {min(1.0, abs(credit) / top) * 0.7:.3f})"
    return f'<span style="{style}" title="{told}">{html.escape(text) or "·"}</span> '
