"""Transcripts: a path, or anybody's conversation, as token ids with a span for each action.

Where a local model played, the log holds the ids, and they are taken as they are. Else the whole
conversation is written once, by the chat template ("chat") or as plain lines ("plain"), tokenised
once, and each action's span is checked to be a whole number of tokens.

    plain    "[role]: content" and a newline, a message a line; the span is all behind the colon
    chat     the template's text; the span is the content and the end-of-turn token behind it
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from turnbench.agents.chat import Chat
from turnbench.agents.model import Message
from turnbench.agents.spans import Pair
from turnbench.envs.errors import ModelError, UnknownName
from turnbench.envs.record import Trajectory

Form = Literal["auto", "log", "chat", "plain"]
FORMS = ("auto", "log", "chat", "plain")


class Conversation(NamedTuple):
    """Messages, and which of them are actions to be scored."""

    messages: tuple[Message, ...]
    actions: tuple[int, ...]


def conversation(path: Trajectory) -> Conversation:
    """A path as observations and answers in turn."""
    rows = [
        message
        for turn in path.turns
        for message in (Message("user", turn.observation), Message("assistant", turn.text))
    ]
    return Conversation(tuple(rows), tuple(range(1, len(rows), 2)))


_tokenising = threading.Lock()  # a fast tokenizer refuses to be used by two threads at once


class Scribe:
    """Writes with one tokenizer. `vocabulary` is the number of ids that the network knows."""

    def __init__(self, tokenizer: Any, vocabulary: int, form: Form = "auto") -> None:
        if form not in FORMS:
            raise UnknownName("form of text", form, FORMS)
        self.tokenizer, self.vocabulary, self.form = tokenizer, vocabulary, form
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if form == "chat" and not has_template:
            raise ModelError("the tokenizer has no chat template: take the plain form")
        self.chat = Chat(tokenizer, vocabulary) if has_template else None

    def pairs(self, path: Trajectory | Conversation) -> list[Pair]:
        """(prompt ids, action ids) of each turn. Raises ModelError, LogError."""
        with _tokenising:
            if isinstance(path, Conversation):
                return self.written(path)
            if self.form == "log" or (self.form == "auto" and self._has_ids(path)):
                return self.logged(path)
            return self.written(conversation(path))

    def _has_ids(self, path: Trajectory) -> bool:
        return all(turn.tokens is not None and turn.tokens.ids for turn in path.turns)

    def logged(self, path: Trajectory) -> list[Pair]:
        """The ids in the log, if they mean the same to this tokenizer. Raises ModelError, LogError."""
        pairs = path.sequences()
        for k, (turn, (prompt, ids)) in enumerate(zip(path.turns, pairs, strict=True), start=1):
            known = max((*prompt, *ids), default=0) < self.vocabulary
            said = self._decode(ids, plain=True) if known else ""
            if not known or not said.strip().startswith(turn.text.strip()):
                raise ModelError(
                    f"turn {k}: the log's token ids aren't this tokenizer's: {said!r:.60} is not "
                    f"{turn.text!r:.60}; take the chat or plain form, which tokenises the text anew"
                )
        return pairs

    def written(self, said: Conversation) -> list[Pair]:
        """The ids of a conversation's text. Raises ModelError."""
        if self.chat is None or self.form == "plain":
            return self._tokenised(*plain_text(said))
        whole = self._chat_text(said.messages, said.actions)
        if whole is not None:
            return self._tokenised(*whole)
        # The template rewrites what came earlier, so each turn has a text of its own.
        return [self._alone(said.messages[: at + 1]) for at in said.actions]

    def _alone(self, messages: Sequence[Message]) -> Pair:
        found = self._chat_text(messages, [len(messages) - 1])
        if found is None:
            raise ModelError("the chat template rewrites what the assistant said: take the plain form")
        return self._tokenised(*found)[0]

    def _chat_text(
        self, messages: Sequence[Message], actions: Sequence[int]
    ) -> tuple[str, list[tuple[int, int]]] | None:
        """The template's text and the spans of actions in it; None where it isn't written turn by turn."""
        assert self.chat is not None
        whole = self.chat.render(messages, generation=False)
        spans = []
        for at in actions:
            content = messages[at].content
            before = self.chat.render(messages[:at], generation=True) if at else _before(whole, content)
            text = content if whole.startswith(content, len(before)) else content.strip()
            if not whole.startswith(before) or not whole.startswith(text, len(before)):
                return None
            end = len(before) + len(text)
            spans.append((len(before), end + self._mark(whole, end)))
        return whole, spans

    def _mark(self, text: str, at: int) -> int:
        """The length of the special token that stands there."""
        marks = (str(token) for token in self.tokenizer.added_tokens_decoder.values())
        return max((len(mark) for mark in marks if text.startswith(mark, at)), default=0)

    def _tokenised(self, text: str, spans: Sequence[tuple[int, int]]) -> list[Pair]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ModelError("the text holds half a surrogate pair, which no tokenizer reads")
        if not getattr(self.tokenizer, "is_fast", False):
            raise ModelError("the tokenizer doesn't tell where its tokens stand in a text (no fast one)")
        coded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids, places = tuple(coded["input_ids"]), coded["offset_mapping"]
        if self._decode(ids).strip(" ") != text.strip(" "):
            raise ModelError(
                "the tokenizer doesn't round-trip: what it makes of the text isn't the text; "
                f"{_first_difference(self._decode(ids), text)}"
            )
        return [self._span(text, ids, places, span, k) for k, span in enumerate(spans, start=1)]

    def _span(
        self,
        text: str,
        ids: tuple[int, ...],
        places: Sequence[tuple[int, int]],
        span: tuple[int, int],
        turn: int,
    ) -> Pair:
        start, end = span
        inside = [k for k, (a, b) in enumerate(places) if a < end and b > start]
        first, last = (inside[0], inside[-1] + 1) if inside else (0, 0)
        said = self._decode(ids[first:last])
        if said.strip() != text[start:end].strip():
            raise ModelError(
                f"the action of turn {turn} isn't a whole number of tokens: {said!r:.60} is not "
                f"{text[start:end]!r:.60}; take another form of text"
            )
        return ids[:first], ids[first:last]

    def _decode(self, ids: Sequence[int], *, plain: bool = False) -> str:
        return self.tokenizer.decode(  # type: ignore[no-any-return]
            ids, skip_special_tokens=plain, clean_up_tokenization_spaces=False
        )


def _before(whole: str, content: str) -> str:
    """What a template writes before a conversation that begins with an action."""
    return whole[: max(0, whole.find(content.strip()))]


def plain_text(said: Conversation) -> tuple[str, list[tuple[int, int]]]:
    """A line a message, and where the actions stand."""
    text, spans = "", []
    for k, message in enumerate(said.messages):
        text += f"[{message.role}]:"
        start = len(text)
        text += f" {message.content}\n"
        if k in said.actions:
            spans.append((start, len(text)))
    return text, spans


def _first_difference(one: str, other: str) -> str:
    at = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)
    return f"{other[max(0, at - 10) : at + 10]!r} becomes {one[max(0, at - 10) : at + 10]!r}"


def check_same_vocabulary(policy: Any, reference: Any) -> None:
    """Raise ModelError where two tokenizers give ids another meaning."""
    mine: Mapping[str, int] = policy.get_vocab()
    theirs: Mapping[str, int] = reference.get_vocab()
    if mine != theirs:
        apart = sorted(
            word for word in mine.keys() | theirs.keys() if mine.get(word) != theirs.get(word)
        )
        raise ModelError(
            f"policy and reference have different vocabularies ({len(mine)} and {len(theirs)} tokens; "
            f"{len(apart)} differ, among them {', '.join(map(repr, apart[:3]))}): no token of one can be "
            "scored by the other"
        )
