"""The `Tokenizer` protocol: text to ids and back, with the end-of-sequence ids stated and never guessed."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

UNKNOWN_TEXT = "\N{REPLACEMENT CHARACTER}"
"""What `decode` writes for an id that has no token: embeddings are often padded past the vocabulary, and a sampled
padding id must not stop a run."""


@runtime_checkable
class Tokenizer(Protocol):
    """What every other room may ask of a tokenizer.

    Attributes:
      name: short name for logs and checkpoints.
      vocab_size: largest id + 1; the smallest embedding that serves this tokenizer.
      eos_ids: ids that end a completion, at least one; the first is the one written after an SFT completion.
      pad_id: id that fills the unused end of a row. It may equal an eos id: masks come from lengths.
      bos_token: text of the beginning-of-sequence token that chat templates may write, "" where there is none.
      chat_template: jinja2 chat template that belongs to this vocabulary, None where there is none.
    """

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def bos_token(self) -> str: ...

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Nothing is added: special tokens appear only where the text spells them."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens kept as text; an id without a token becomes `UNKNOWN_TEXT`."""
        ...

    def fingerprint(self) -> str:
        """Hex sha256 of everything that decides `encode` and `decode`; equal exactly when ids mean the same."""
        ...
