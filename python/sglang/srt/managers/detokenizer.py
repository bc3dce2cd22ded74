"""Token ids to text, one token at a time: characters whole, stop strings found, cost linear.

Pure and deterministic: what leaves depends on the tokens alone, never on how many arrive at once.
That is why the pieces of a stream, joined, are the text of the unstreamed answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
# A character has at most four bytes, so three tokens can be waiting for the rest of one.
_MAX_INCOMPLETE_TOKENS = 3

Decode = Callable[[Sequence[int]], str]


class TextAssembler:
    """Text that later tokens can't change, in steps of whole tokens.

    A token that ends inside a character decodes to a trailing U+FFFD and waits for the next one.
    Only a short window is decoded: the tokens not yet given out, and before them the last ones
    that were, because some tokenizers decode a token by what precedes it (a leading space).
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._context_len = 0
        self._context_text = ""

    def push(self, token_id: int) -> str:
        """Add one token; returns the text that is certain now, often that of this token."""
        self._window.append(token_id)
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._take(len(self._window), text)
        if len(self._window) - self._context_len > _MAX_INCOMPLETE_TOKENS:
            return self._take_invalid(text)
        return ""

    def flush(self) -> str:
        """The rest, with U+FFFD for a character that was never finished."""
        return self._take(len(self._window), self._decode(self._window))

    def _take(self, end: int, text: str) -> str:
        """Give out the window up to `end`, which decodes to `text`."""
        piece = text[len(self._context_text) :]
        if piece:
            self._window = self._window[self._context_len :]
            self._context_len = end - self._context_len
            self._context_text = self._decode(self._window[: self._context_len])
        else:
            # Tokens without text (a skipped special token) must not push the context out.
            del self._window[self._context_len : end]
        return piece

    def _take_invalid(self, text: str) -> str:
        """Bytes that are no UTF-8: all but the last U+FFFD can't become a character any more."""
        certain = text[: -len(REPLACEMENT)]
        for end in range(len(self._window) - 1, self._context_len, -1):
            head = self._decode(self._window[:end])
            if certain.startswith(head):
                return self._take(end, head)
        return ""


class _StopString:
    """Knuth-Morris-Pratt matcher of one stop string, fed one character at a time."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched_len = 0  # longest suffix of the text so far that is a prefix of the pattern
        self._borders = [0] * len(pattern)
        border = 0
        for i in range(1, len(pattern)):
            border = self._step(pattern[i], border)
            self._borders[i] = border

    def feed(self, char: str) -> bool:
        """True when the pattern ends at this character."""
        if self.matched_len == len(self.pattern):
            self.matched_len = self._borders[-1]
        self.matched_len = self._step(char, self.matched_len)
        return self.matched_len == len(self.pattern)

    def _step(self, char: str, length: int) -> int:
        while length and self.pattern[length] != char:
            length = self._borders[length - 1]
        return length + 1 if self.pattern[length] == char else 0


class StopMatcher:
    """Holds text back as far as a stop string could begin in it, in steps of whole pieces.

    After a match `matched` names the stop string; of several that one piece completes, the one
    that begins first counts.
    """

    def __init__(self, stops: Sequence[str], no_stop_trim: bool = False) -> None:
        self._stops = [_StopString(stop) for stop in stops if stop]
        self._no_stop_trim = no_stop_trim
        self._held = ""
        self._piece_ends: list[int] = []  # offsets in `_held` where a piece ends
        self.matched: str | None = None

    def push(self, piece: str, may_match: bool = True) -> str:
        """Add one piece; returns the text that may leave. Nothing may be pushed after a match."""
        if not self._stops:
            return piece
        offset = len(self._held)
        self._held += piece
        self._piece_ends.append(len(self._held))
        start = self._find_match(piece, offset)
        if start is not None and may_match:
            return self._release(len(self._held) if self._no_stop_trim else start)
        self.matched = None
        limit = len(self._held) - max(
            stop.matched_len if stop.matched_len < len(stop.pattern) else 0 for stop in self._stops
        )
        return self._release(max((end for end in self._piece_ends if end <= limit), default=0))

    def flush(self) -> str:
        """What is held back, when no more text can come."""
        return self._release(len(self._held))

    def _find_match(self, piece: str, offset: int) -> int | None:
        start: int | None = None
        for stop in self._stops:
            for i, char in enumerate(piece):
                if not stop.feed(char):
                    continue
                begin = offset + i + 1 - len(stop.pattern)
                if start is None or begin < start:
                    start, self.matched = begin, stop.pattern
        # Text before `_held` has left already; only an ignored match can begin there.
        return None if start is None else max(start, 0)

    def _release(self, end: int) -> str:
        piece, self._held = self._held[:end], self._held[end:]
        self._piece_ends = [piece_end - end for piece_end in self._piece_ends if piece_end > end]
        return piece


class IncrementalDetokenizer:
    """Text of one request. `num_tokens` counts tokens up to the one that completed a stop string.

    A token that ends inside a character is complete with the token that completes the character.

    `decode` maps token ids to text with the request's own settings (skipped special tokens).
    Stop strings that end before `min_new_tokens` tokens are text like any other.
    """

    def __init__(
        self,
        decode: Decode,
        stops: Sequence[str] = (),
        no_stop_trim: bool = False,
        min_new_tokens: int = 0,
    ) -> None:
        self._assembler = TextAssembler(decode)
        self._matcher = StopMatcher(stops, no_stop_trim)
        self._min_new_tokens = min_new_tokens
        self.num_tokens = 0

    @property
    def matched(self) -> str | None:
        """The stop string that was found; no token may follow."""
        return self._matcher.matched

    def push(self, token_id: int) -> str:
        """Add one token; returns the text that may leave, perhaps none."""
        self.num_tokens += 1
        return self._push_text(self._assembler.push(token_id))

    def skip(self) -> None:
        """Count one token that has no text: the stop token that ended the request."""
        self.num_tokens += 1

    def finish(self) -> str:
        """The end of the tokens: all text still held back, unless a stop string is in it."""
        tail = self._push_text(self._assembler.flush())
        return tail if self.matched is not None else tail + self._matcher.flush()

    def _push_text(self, piece: str) -> str:
        if not piece:
            return ""
        return self._matcher.push(piece, self.num_tokens >= self._min_new_tokens)
