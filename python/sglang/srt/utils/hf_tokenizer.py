"""Tokenizer and chat template of a model folder, without transformers and therefore without torch.

The `tokenizers` library reads `tokenizer.json` by itself; importing it takes a tenth of the time
of transformers and leaves the front end small. A folder that has only an older format is converted
by transformers.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2
    import tokenizers

_CONFIG_FILES = ("*.json", "*.jinja", "*.model", "*.txt")


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte as in GPT-2's byte-level BPE: printable Latin-1 characters stand for
    themselves, the other bytes for the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHAR = _byte_level_alphabet()


class TokenizerError(ValueError):
    """A tokenizer that can't be read, or a text that can't be tokenised; one line says why."""


class HfTokenizer:
    """Encodes and decodes with the rules of `tokenizer.json`, and renders the chat template.

    Thread-safe: nothing changes after construction.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: dict[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special_tokens = special_tokens or {}
        self._template = compile_template(chat_template) if chat_template else None
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self._is_byte_level = type(backend.decoder).__name__ == "ByteLevel"
        self.max_token_chars = max((len(token) for token in backend.get_vocab()), default=1)

    @classmethod
    def from_path(cls, path: str, chat_template: str | None = None) -> HfTokenizer:
        """Load from a folder or a hub name; `chat_template` (file or text) replaces the model's.

        Raises TokenizerError with one line.
        """
        folder = path if os.path.isdir(path) else _download(path)
        config = _read_json(folder, "tokenizer_config.json")
        special = {**_read_json(folder, "special_tokens_map.json"), **config}
        template = _read_template(chat_template) or _model_template(folder, config)
        try:
            return cls(_load_backend(folder), _special_texts(special), template)
        except TokenizerError:
            raise
        except Exception as error:
            raise TokenizerError(f"tokenizer of {path}: {_one_line(error)}") from error

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can be called."""
        return self._template is not None

    @property
    def eos_token_id(self) -> int | None:
        """Id of the tokenizer's end-of-text token, when it names one."""
        text = self._special_tokens.get("eos_token")
        return None if text is None else self._backend.token_to_id(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises TokenizerError for text that is not valid Unicode."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise TokenizerError("text holds a lone surrogate, which is not Unicode") from None
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; ids without a token give no text."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; a token may hold a part of a character."""
        token = self._backend.id_to_token(token_id) or ""
        if self._is_byte_level and all(char in _BYTE_OF_CHAR for char in token):
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        return self.decode([token_id], skip_special_tokens=False).encode()

    def decoder(self, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
        """`decode` with its setting fixed."""
        return lambda token_ids: self.decode(token_ids, skip_special_tokens)

    def render_chat(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Messages to prompt text by the chat template. Raises TokenizerError with its reason."""
        if self._template is None:
            raise TokenizerError("the model has no chat template: start with --chat-template")
        import jinja2

        try:
            return self._template.render(messages=messages, **{**self._special_tokens, **variables})
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TokenizerError(f"chat template: {_one_line(error)}") from error


def compile_template(text: str) -> jinja2.Template:
    """A chat template in a sandbox, with the functions that Hugging Face templates rely on."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise TokenizerError(f"chat template: {_one_line(error)}") from error


def _load_backend(folder: str) -> tokenizers.Tokenizer:
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path):
        from tokenizers import Tokenizer

        return Tokenizer.from_file(path)
    from transformers import AutoTokenizer

    slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    backend: tokenizers.Tokenizer | None = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(f"{folder} has no tokenizer.json and can't be converted to one")
    return backend


def _download(name: str) -> str:
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(name, allow_patterns=list(_CONFIG_FILES)))
    except Exception as error:
        raise TokenizerError(f"tokenizer {name}: {_one_line(error)}") from error


def _read_json(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: {_one_line(error)}") from error
    return values if isinstance(values, dict) else {}


def _special_texts(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and its like as plain text; files hold a string or an object with `content`."""
    texts = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            texts[name] = content
    return texts


def _read_template(chat_template: str | None) -> str | None:
    if chat_template is None or "{" in chat_template:
        return chat_template
    try:
        with open(chat_template, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise TokenizerError(f"--chat-template {chat_template}: {error.strerror}") from error


def _model_template(folder: str, config: dict[str, Any]) -> str | None:
    path = os.path.join(folder, "chat_template.jinja")
    if os.path.exists(path):
        return _read_template(path)
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name; "default" is for plain chat
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
