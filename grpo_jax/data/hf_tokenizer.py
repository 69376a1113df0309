"""Any Hugging Face tokenizer behind the `Tokenizer` protocol, from a tokenizer.json or one built in memory."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from grpo_jax.data.tokenizer import UNKNOWN_TEXT


class HFTokenizer:
    """Wraps a `tokenizers.Tokenizer`; the eos ids are given, for a tokenizer.json does not say what ends a turn.

    Truncation and padding that the file asks for are switched off: rows are cut and padded in one place only.

    Args:
      tokenizer: the tokenizer; it is copied, so later changes to it have no effect.
      eos: tokens, or their ids, that end a completion; the first closes an SFT completion. Chat models usually have
        two, the end of a turn and the end of a text: give the end of a turn first.
      pad: token or id that fills the unused end of a row, None for the first eos.
      bos: token that chat templates may write first, None for none.
      chat_template: jinja2 chat template, None where there is none.
      name: name for logs.

    Raises:
      ValueError: a token or id is not in the vocabulary, or `eos` is empty.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        eos: Sequence[str | int],
        pad: str | int | None = None,
        bos: str | None = None,
        chat_template: str | None = None,
        name: str = "tokenizer.json",
    ) -> None:
        if isinstance(eos, str) or not eos:
            raise ValueError(f"eos is a list of at least one token or id, got {eos!r}")
        self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._name = name
        self._size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self._eos_ids = tuple(dict.fromkeys(self._token_id("eos", token) for token in eos))
        self._pad_id = self._eos_ids[0] if pad is None else self._token_id("pad", pad)
        if bos is not None:
            self._token_id("bos", bos)
        self._bos_token = "" if bos is None else bos
        self._chat_template = chat_template

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        eos: Sequence[str | int],
        pad: str | int | None = None,
        bos: str | None = None,
        chat_template: str | None = None,
    ) -> "HFTokenizer":
        """The tokenizer in a tokenizer.json file; see the class for the other arguments.

        Raises:
          ValueError: the file cannot be read as a tokenizer.
        """
        try:
            tokenizer = tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception for a file it does not understand
            raise ValueError(f"cannot read a tokenizer from {path}: {error}; give a tokenizer.json file") from error
        return cls(tokenizer, eos=eos, pad=pad, bos=bos, chat_template=chat_template, name=str(path))

    @property
    def name(self) -> str:
        return self._name

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self._eos_ids

    @property
    def pad_id(self) -> int:
        return self._pad_id

    @property
    def bos_token(self) -> str:
        return self._bos_token

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. The template writes bos itself, so the tokenizer's post-processor adds nothing here."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included; an id without a token becomes U+FFFD."""
        parts: list[str] = []
        run: list[int] = []
        # The library drops ids it does not know, which would hide that a model samples from its embedding's padding.
        for token_id in map(int, ids):
            if self._tokenizer.id_to_token(token_id) is not None:
                run.append(token_id)
                continue
            parts += [self._decode_known(run), UNKNOWN_TEXT]
            run = []
        return "".join([*parts, self._decode_known(run)])

    def fingerprint(self) -> str:
        """Hex sha256 of the tokenizer's JSON, the eos ids and the pad id."""
        content = [json.loads(self._tokenizer.to_str()), self._eos_ids, self._pad_id]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _decode_known(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""

    def _token_id(self, role: str, token: str | int) -> int:
        if isinstance(token, int):
            known = 0 <= token < self._size and self._tokenizer.id_to_token(token) is not None
            found = token if known else None
        else:
            found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(
                f"{role} {token!r} is not in the vocabulary of {self._name} ({self._size} tokens); give a token's text "
                f"or its id"
            )
        return found
