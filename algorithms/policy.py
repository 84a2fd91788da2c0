"""A model under training as a `Model`, so that agents can play it between two steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from turnbench.agents.model import Answer, Completion, Prompt, Sampling
from turnbench.envs.record import Failure, Outcome, Usage

BATCH = 64


class LivePolicy:
    """Samples from a causal LM as it stands in memory; it is read, never changed.

    A sample depends on its prompt's seed and, up to rounding, not on the batch it was drawn in.
    """

    def __init__(self, model: Any, tokenizer: Any, sampling: Sampling, context: int) -> None:
        self.model, self.tokenizer, self.context = model, tokenizer, context
        self.name, self.sampling = "live", sampling

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """One answer for each prompt; one too long for the context is a Failure."""
        answers: list[Answer] = []
        for start in range(0, len(prompts), BATCH):
            answers += self._some(prompts[start : start + BATCH], sampling or self.sampling)
        return answers

    def close(self) -> None:
        """The model belongs to the trainer."""

    def _some(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answer]:
        asked = [self._ids(prompt) for prompt in prompts]
        answers: list[Answer] = [
            Failure(Outcome.TRUNCATED, f"{len(ids)} tokens fill the context of {self.context}")
            for ids in asked
        ]
        fits = [k for k, ids in enumerate(asked) if len(ids) + sampling.max_tokens <= self.context]
        if fits:
            rngs = [np.random.default_rng(prompts[k].seed) for k in fits]
            drawn = self._sample([asked[k] for k in fits], rngs, sampling)
            for k, (ids, logprobs) in zip(fits, drawn, strict=True):
                answers[k] = self._answer(asked[k], ids, logprobs)
        return answers

    def _ids(self, prompt: Prompt) -> list[int]:
        rows = [{"role": m.role, "content": m.content} for m in prompt.messages]
        text = self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _answer(self, asked: list[int], ids: list[int], logprobs: list[float]) -> Completion:
        whole = ids[-1] == self.tokenizer.eos_token_id
        text = self.tokenizer.decode(ids[:-1] if whole else ids)
        usage = Usage(1, len(asked), 0, len(ids))
        return Completion(
            text, "stop" if whole else "length", usage, tuple(asked), tuple(ids), tuple(logprobs)
        )

    @torch.inference_mode()
    def _sample(
        self, asked: list[list[int]], rngs: list[np.random.Generator], sampling: Sampling
    ) -> list[tuple[list[int], list[float]]]:
        """(ids, log-probs) of one completion a prompt. Prompts are padded on the left; a completion
        leaves the batch where it ends.
        """
        width, device = max(map(len, asked)), next(self.model.parameters()).device
        mask = torch.tensor([[0] * (width - len(a)) + [1] * len(a) for a in asked], device=device)
        fed = torch.tensor([[0] * (width - len(a)) + a for a in asked], device=device)
        place = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        drawn: list[tuple[list[int], list[float]]] = [([], []) for _ in asked]
        going = list(range(len(asked)))
        for _ in range(sampling.max_tokens):
            logits = self.model(
                input_ids=fed,
                attention_mask=mask,
                position_ids=place,
                past_key_values=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            logs = torch.log_softmax(logits.double(), -1).cpu().numpy()
            picked = [_draw(row, rngs[k], sampling) for row, k in zip(logs, going, strict=True)]
            for row, k, token in zip(logs, going, picked, strict=True):
                drawn[k][0].append(token)
                drawn[k][1].append(float(row[token]))
            kept = [j for j, token in enumerate(picked) if token != self.tokenizer.eos_token_id]
            if not kept:
                break
            if len(kept) < len(going):
                cache.batch_select_indices(torch.tensor(kept, device=device))
                mask, place, going = mask[kept], place[kept], [going[j] for j in kept]
            fed = torch.tensor([[picked[j]] for j in kept], device=device)
            place, mask = place[:, -1:] + 1, torch.cat([mask, torch.ones_like(fed)], 1)
        return drawn


def _draw(logs: np.ndarray[Any, Any], rng: np.random.Generator, sampling: Sampling) -> int:
    """A token from log-probs [vocabulary], by temperature and nucleus (Holtzman et al. 2020)."""
    if sampling.temperature == 0:
        return int(logs.argmax())
    scaled = logs / sampling.temperature
    order = np.argsort(-scaled, kind="stable")
    probs = np.exp(scaled[order] - scaled[order[0]])
    mass = np.cumsum(probs / probs.sum())
    kept = int(np.searchsorted(mass, min(sampling.top_p, mass[-1]))) + 1
    return int(order[np.searchsorted(mass[:kept], rng.random() * mass[kept - 1], side="right")])
