"""Incremental text equals the text of all tokens, whatever the script, split or stop string."""

from __future__ import annotations

import functools
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.managers.detokenizer import IncrementalDetokenizer, StopMatcher
from support.byte_tokenizer import make_tokenizer

TEXTS = st.text(alphabet=st.sampled_from("ab.\n é€語🙂\U0001f9d1\u200d\ufffd"), max_size=30)


@functools.cache
def _tokenizer():
    # Merges that end inside characters: half of "é", three bytes of an emoji, a space and a byte.
    return make_tokenizer(
        (("a", "b"), ("a", "Ã"), ("ð", "Ł"), ("ðŁ", "Ļ"), ("Ġ", "â"), ("ab", "ab"))
    )


def _run(ids: list[int], **options) -> tuple[list[str], IncrementalDetokenizer]:
    detokenizer = IncrementalDetokenizer(_tokenizer().decoder(True), **options)
    pieces = []
    for token_id in ids:
        pieces.append(detokenizer.push(token_id))
        if detokenizer.matched is not None:
            return pieces, detokenizer
    pieces.append(detokenizer.finish())
    return pieces, detokenizer


@given(TEXTS)
def test_joined_pieces_of_valid_text_equal_it(text):
    pieces, _ = _run(_tokenizer().encode(text))
    assert "".join(pieces) == text


@given(st.lists(st.integers(0, 264), max_size=40))
def test_joined_pieces_of_any_tokens_equal_decode_of_all(ids):
    ids = [i % _tokenizer().vocab_size for i in ids]
    pieces, _ = _run(ids)
    assert "".join(pieces) == _tokenizer().decode(ids)


def test_split_character_never_leaves_as_replacement():
    pieces, _ = _run(_tokenizer().encode("x語🙂y"))
    assert all("\ufffd" not in piece for piece in pieces)
    assert pieces.count("") >= 3  # the bytes in between say nothing


@given(TEXTS, st.lists(st.text("ab.é🙂", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_where_first_token_completes_a_stop_string(text, stops):
    ids = _tokenizer().encode(text)
    pieces, detokenizer = _run(ids, stops=stops)
    joined = "".join(pieces)
    first = next((n for n in range(len(ids) + 1) if _contains(ids[:n], stops)), None)
    if first is None:
        assert (joined, detokenizer.matched) == (text, None)
        return
    prefix = _tokenizer().decode(ids[:first])
    start = min(prefix.find(stop) for stop in stops if stop in prefix)
    assert joined == prefix[:start]
    assert detokenizer.matched is not None
    assert detokenizer.num_tokens == first


def _contains(ids: list[int], stops: list[str]) -> bool:
    """Whether these tokens hold a stop string and end with a whole character.

    A token may end inside a character; its text, a stop string in it included, is certain only
    when the rest of the character is there.
    """
    text = _tokenizer().decode(ids)
    return not text.endswith("\ufffd") and any(stop in text for stop in stops)


@given(TEXTS, st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=3))
def test_pieces_end_on_token_boundaries(text, stops):
    ids = _tokenizer().encode(text)
    pieces, detokenizer = _run(ids, stops=stops)
    boundaries = {_tokenizer().decode(ids[:n]) for n in range(len(ids) + 1)}
    joined = ""
    for piece in pieces if detokenizer.matched is None else pieces[:-1]:
        joined += piece
        assert joined in boundaries


def test_stop_string_over_several_tokens_is_held_back_and_trimmed():
    pieces, detokenizer = _run(_tokenizer().encode("see STOP now"), stops=["STOP"])
    assert "".join(pieces) == "see "
    assert detokenizer.matched == "STOP"
    assert detokenizer.num_tokens == len("see STOP")


def test_text_that_only_began_like_a_stop_string_leaves_later():
    pieces, _ = _run(_tokenizer().encode("STxy"), stops=["STOP"])
    assert pieces[:3] == ["", "", "STx"]


def test_no_stop_trim_keeps_the_stop_string():
    pieces, detokenizer = _run(_tokenizer().encode("x.y"), stops=["."], no_stop_trim=True)
    assert ("".join(pieces), detokenizer.matched) == ("x.", ".")


def test_stop_string_before_min_new_tokens_is_text():
    pieces, detokenizer = _run(_tokenizer().encode("a.c.d"), stops=["."], min_new_tokens=3)
    assert ("".join(pieces), detokenizer.num_tokens) == ("a.c", 4)


def test_skipped_special_tokens_leave_no_text():
    tokenizer = _tokenizer()
    ids = tokenizer.encode("a<|im_start|>b")
    assert "".join(_run(ids)[0]) == "ab"
    shown = IncrementalDetokenizer(tokenizer.decoder(False))
    assert "".join([*map(shown.push, ids), shown.finish()]) == "a<|im_start|>b"


@settings(max_examples=20)
@given(st.text("ab", max_size=200))
def test_matcher_holds_back_no_more_than_a_stop_string_could_need(text):
    matcher = StopMatcher(["aab"])
    left = ""
    for i, char in enumerate(text):
        left += matcher.push(char)
        if matcher.matched:
            return
        held = text[len(left) : i + 1]
        assert "aab".startswith(held) and len(held) < 3


def test_cost_is_linear_in_the_length():
    def seconds(num: int) -> float:
        start = time.perf_counter()
        _run([97] * num, stops=["zz"])
        return time.perf_counter() - start

    seconds(100)
    assert seconds(8000) < 40 * seconds(1000)
