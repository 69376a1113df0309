"""Where the records of a task come from: a JSON-lines file, or a data set of the Hugging Face Hub."""

import dataclasses
import decimal
import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from grpo_jax.data.hub import hub_rows

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where the problems are: a file (`path`) or a data set of the Hugging Face Hub (`hub`), one of the two.

    Attributes:
      path: JSONL file of the problems; one whose name ends in .gz is unpacked as it is read.
      heldout_path: second JSONL file whose problems are held out; None holds out a share of `path`.
      heldout_fraction: share to hold out where there is no second source of held-out problems, in (0, 1).
      hub: data set of the Hub, such as "openai/gsm8k"; needs the extra `hf`.
      hub_name: its configuration, such as "main"; None where it has one alone.
      hub_split: its split of training problems.
      hub_heldout_split: its split of held-out problems; None holds out a share of `hub_split`.
    """

    path: str | None = None
    heldout_path: str | None = None
    heldout_fraction: float = 0.1
    hub: str | None = None
    hub_name: str | None = None
    hub_split: str = "train"
    hub_heldout_split: str | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.hub is None):
            raise ValueError(
                f"path is {self.path!r}, but it must be the path of a JSONL file where hub is null, and null where hub "
                f"names a data set; hub is {self.hub!r}. Give one of the two"
            )
        for field in ("path", "hub", "hub_split"):
            if getattr(self, field) == "":
                raise ValueError(f"{field} must not be empty")
        if self.hub is None:
            given = [name for name in ("hub_name", "hub_heldout_split") if getattr(self, name) is not None]
            given += ["hub_split"] if self.hub_split != "train" else []
            if given:
                raise ValueError(f"{given[0]} is {getattr(self, given[0])!r}, but it must be left out where hub is null")
        elif self.heldout_path is not None:
            raise ValueError(
                f"heldout_path is {self.heldout_path!r}, but it must be null where hub is given. Name a split of the data "
                "set by hub_heldout_split"
            )
        if self.hub is not None and self.hub_heldout_split == self.hub_split:
            raise ValueError(
                f"hub_heldout_split is {self.hub_heldout_split!r}, but it must be another split than hub_split, or null to "
                "hold out a share of that"
            )
        if not 0 < self.heldout_fraction < 1:
            raise ValueError(f"heldout_fraction lies between 0 and 1, both excluded; got {self.heldout_fraction}")

    @property
    def name(self) -> str:
        """The source of training problems, for messages."""
        return str(self.path) if self.hub is None else f"{self.hub}[{self.hub_split}]"

    @property
    def heldout_name(self) -> str | None:
        """The source of held-out problems, None where they are a share of the other."""
        if self.hub is None:
            return self.heldout_path
        return None if self.hub_heldout_split is None else f"{self.hub}[{self.hub_heldout_split}]"

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Yields (place for messages, record) of the source of training problems.

        Raises:
          ValueError: the source cannot be read; names it and the remedy.
        """
        if self.hub is not None:
            return hub_rows(self.hub, self.hub_name, self.hub_split)
        return read_rows(str(self.path))

    def heldout_rows(self) -> Iterator[tuple[str, Row]] | None:
        """The same of the source of held-out problems, None where there is none."""
        if self.hub is not None:
            return None if self.hub_heldout_split is None else hub_rows(self.hub, self.hub_name, self.hub_heldout_split)
        return None if self.heldout_path is None else read_rows(self.heldout_path)


def read_rows(path: str | Path) -> Iterator[tuple[str, Row]]:
    """Yields ("file:line", object) for each line that is not blank.

    Raises:
      ValueError: the file cannot be read, or a line is not one JSON object in UTF-8; names file, line and rule.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read the problems in {path}: {error.strerror}; give the path of a JSONL file") from error
    if str(path).endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"cannot read the problems in {path}: a name in .gz is a gzip file; {error}") from error
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        try:
            # utf-8-sig: files saved on Windows open with a byte order mark.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if not text.strip():
                continue
            # Decimal keeps a number as it is written: 2.50 stays 2.50, and 1e400 is not infinity.
            row = json.loads(text, parse_float=decimal.Decimal, parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: a line is UTF-8 text; byte {error.start} is not ({error.reason})") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: a line is one JSON object; {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a line is one JSON object; got {type(row).__name__}: {text.strip()[:80]!r}")
        yield where, row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def text_field(where: str, row: Row, field: str, *, numbers: bool = False) -> str:
    """The text in `field` of `row`, stripped; numbers become their text if `numbers`.

    Raises:
      ValueError: the field is missing, empty or of another type.
    """
    if field not in row:
        raise ValueError(f"{where}: a row has the field {field!r}; this one has {sorted(row)}. Name the right field")
    value = row[field]
    # A file's numbers are Decimal, as they are written; those of a hub's data set are float.
    finite = isinstance(value, int | decimal.Decimal) or (isinstance(value, float) and math.isfinite(value))
    if numbers and finite and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        expected = "text or a number" if numbers else "text"
        raise ValueError(f"{where}: field {field!r} holds {expected}, not empty; got {value!r:.80}")
    return value.strip()


def plain(where: str, field: str, value: Any) -> Any:
    """`value` in JSON's own types, as a reward's metadata has them.

    Raises:
      ValueError: it holds something that JSON has no type for, or a number too large for a float; names place and field.
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, decimal.Decimal | float):
        number = float(value)
        if math.isfinite(number):
            return number
    if isinstance(value, list | tuple):
        return [plain(where, field, item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(where, field, item) for key, item in value.items()}
    raise ValueError(
        f"{where}: field {field!r} is metadata, in JSON's types with finite numbers; "
        f"got {type(value).__name__} {value!r:.80}"
    )
