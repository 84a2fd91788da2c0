"""Chat: from conversations to token ids and back, without ever tokenising sampled text again."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from turnbench.agents.model import Message, Prompt
from turnbench.envs.errors import ModelError

THINK = "<think>"


class Chat:
    """A tokenizer with its chat template.

    `ends` are the ids that end a turn: the tokenizer's and the checkpoint's own, and the special token
    that the template puts after an answer. `vocabulary` is the number of ids the network knows.
    Raises ModelError where there is no chat template or it doesn't render.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int] = ()) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self._lock = threading.Lock()
        self._opening = lru_cache(maxsize=1024)(self._opening_ids)
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                "the tokenizer has no chat template, so no conversation can be written for it"
            )
        asked = (Message("user", "a"), Message("assistant", "b"))
        after = self.tokens(self._after_answer(asked, 2, generation=False))
        own = {*ends, tokenizer.eos_token_id} - {None}
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self.ends = frozenset(own | (self._added & set(after[:1])))
        self.append_only = self._is_append_only("plain words")
        self.keeps_reasoning = self._is_append_only(f"{THINK}\nreasons\n</think>\n\nplain words")

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids that the model is to continue: the covered ones as they are, then the rest.

        Raises ModelError where the prompt can't be written so.
        """
        ids = self._extended(prompt) if prompt.covered else self._whole(prompt.messages)
        if not ids or min(ids) < 0 or max(ids) >= self.vocabulary:
            raise ModelError(
                f"the prompt is empty or has ids outside the network's vocabulary of {self.vocabulary}: do tokenizer"
                " and weights belong together?"
            )
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens."""
        with self._lock:
            return self.tokenizer.decode(  # type: ignore[no-any-return]
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )

    def answer(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """The text of a completion, cut before the first stop string."""
        text = self.text(ids)
        return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=None)]

    def stopped(self, ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Whether the newest of `ids` completed a stop string (a token holds at least one byte)."""
        longest = max(len(s.encode("utf-8")) for s in stop)
        tail = self.text(ids[-longest - 8 :])
        return any(s in tail for s in stop)

    def tokens(self, text: str) -> list[int]:
        """The ids of a template's text, in which special tokens may stand."""
        with self._lock:  # a fast tokenizer refuses to be used by two threads at once
            return self.tokenizer.encode(  # type: ignore[no-any-return]
                text, add_special_tokens=False, verbose=False
            )

    def _whole(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self.tokens(self.render(messages, generation=True)))

    def _extended(self, prompt: Prompt) -> tuple[int, ...]:
        self._check(prompt)
        rest = self.tokens(self._after_answer(prompt.messages, prompt.covered, generation=True))
        ended = prompt.context[-1] in self.ends and bool(rest) and rest[0] in self.ends
        return prompt.context + tuple(rest[1:] if ended else rest)

    def render(self, messages: Sequence[Message], *, generation: bool) -> str:
        """The template's text; with `generation` up to where the next answer begins."""
        rows = [{"role": m.role, "content": m.content} for m in messages]
        try:
            return self.tokenizer.apply_chat_template(  # type: ignore[no-any-return]
                rows, tokenize=False, add_generation_prompt=generation
            )
        except Exception as error:  # templates are programs, and raise what they like
            raise ModelError(f"the chat template refuses this conversation: {error}") from error

    def _after_answer(self, messages: Sequence[Message], answered: int, *, generation: bool) -> str:
        """What the template writes after the content of message `answered - 1`."""
        mark = "[answer]"
        while any(mark in m.content for m in messages):
            mark = f"[{mark}]"
        marked = [*messages[: answered - 1], Message("assistant", mark), *messages[answered:]]
        _, found, after = self.render(marked, generation=generation).rpartition(mark)
        if not found:
            raise ModelError("the chat template leaves out what the assistant said")
        return after

    def _is_append_only(self, answer: str) -> bool:
        """Whether a longer conversation's text starts with a shorter one's and its answer."""
        ask, reply = Message("user", "a"), Message("assistant", answer)
        texts = [self.render([ask, *[reply, ask] * n], generation=True) for n in range(3)]
        return all(b.startswith(a + answer) for a, b in zip(texts, texts[1:], strict=False))

    def _check(self, prompt: Prompt) -> None:
        covered, ids = prompt.messages[: prompt.covered], prompt.context
        if not ids or len(prompt.messages) <= prompt.covered or covered[-1].role != "assistant":
            raise ModelError("a context must end in an answer, and be followed by what was said to it")
        thought = any(THINK in m.content for m in covered if m.role == "assistant")
        if not self.append_only or (thought and not self.keeps_reasoning):
            raise ModelError(
                "the chat template rewrites earlier turns, so that a prompt can't extend what was sampled:"
                " set `reasoning: drop` (or `history: 0`), which writes each prompt anew"
            )
        first = next(k for k, m in enumerate(covered) if m.role == "assistant")
        opening = self._opening(covered[:first])
        if ids[: len(opening)] != opening:
            raise ModelError("the token ids of the context are not those of this conversation's opening")

    def _opening_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """The ids of what stands before the first answer, as far as no later text can change them."""
        if not messages:
            return ()
        ids = self.tokens(self.render(messages, generation=False))
        last = max((k for k, token in enumerate(ids) if token in self._added), default=-1)
        return tuple(ids[: last + 1])
