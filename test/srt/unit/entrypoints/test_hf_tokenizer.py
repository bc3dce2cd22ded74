"""The small tokenizer wrapper agrees with transformers and refuses what it can't read."""

from __future__ import annotations

import json

import pytest

from sglang.srt.utils.hf_tokenizer import HfTokenizer, TokenizerError
from support.byte_tokenizer import CHAT_TEMPLATE, make_backend, make_tokenizer

MESSAGES = [{"role": "system", "content": "é"}, {"role": "user", "content": "<|im_end|> 🙂"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    make_backend((("a", "b"), ("Ġ", "a"))).save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": {"content": "<|im_end|>", "__type": "AddedToken"},
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_ids_text_and_prompt_equal_transformers(folder):
    transformers = pytest.importorskip("transformers")
    oracle = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>"
    )
    tokenizer = HfTokenizer.from_path(str(folder))
    for text in ("ab cab", "é🙂語", "<|im_start|>x", ""):
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text)
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
    prompt = oracle.apply_chat_template(
        MESSAGES, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.render_chat(MESSAGES, add_generation_prompt=True) == prompt
    assert tokenizer.eos_token_id == oracle.eos_token_id


def test_token_bytes_show_a_part_of_a_character():
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("é")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"\xc3", b"\xa9"]


def test_template_file_of_the_folder_wins(folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert HfTokenizer.from_path(str(tmp_path)).render_chat([{"content": "x"}]) == "x!"
    given = HfTokenizer.from_path(str(tmp_path), "{{ messages[0].content }}?")
    assert given.render_chat([{"content": "x"}]) == "x?"


@pytest.mark.parametrize(
    "template", ["{% for %}", "{{ raise_exception('no tools here') }}", "{{ x.y.z }}"]
)
def test_template_error_is_one_line(folder, template):
    with pytest.raises(TokenizerError, match="chat template") as caught:
        HfTokenizer.from_path(str(folder), template).render_chat(MESSAGES)
    assert "\n" not in str(caught.value)


def test_template_cannot_reach_outside_its_sandbox(folder):
    evil = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(TokenizerError):
        HfTokenizer.from_path(str(folder), evil).render_chat(MESSAGES)


def test_missing_template_is_named():
    with pytest.raises(TokenizerError, match="--chat-template"):
        HfTokenizer(make_backend()).render_chat(MESSAGES)


def test_broken_tokenizer_file_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="tokenizer"):
        HfTokenizer.from_path(str(tmp_path))
