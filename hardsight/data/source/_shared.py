"""Whether examples that are to judge a model are among those it learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hardsight.data.source._source import ExampleSource, evenly_spaced

_LOOKED_AT = 1000  # examples that are to judge


@dataclass(frozen=True)
class SharedExamples:
    """How many of some examples are among others, byte for byte.

    Attributes:
        looked_at: examples in the sample.
        of: examples that it was drawn from.
        shared: how many in the sample are among the others.
        compared_with: how many of the others were compared.
        others: how many there are.
        first: id of the first shared example, and of the one that it is the same as.
    """

    looked_at: int
    of: int
    shared: int
    compared_with: int
    others: int
    first: tuple[str, str] | None = None

    def facts(self) -> dict[str, Any]:
        """As plain values for a record."""
        return asdict(self)

    def warning(self, what: str, where: str) -> str | None:
        """How many of ``what`` are also in ``where``, for the start of a warning, if any are."""
        if not self.shared or self.first is None:
            return None
        own, same = self.first
        return (
            f"{self.shared:,} of {self.looked_at:,} {what} looked at are also in {where}, byte for "
            f"byte, such as {own} ({same} there)"
        )


def shared_examples(
    source: ExampleSource, others: ExampleSource, rows: Sequence[int], *, most_bytes: int = 2**30
) -> SharedExamples | None:
    """Look for evenly spaced examples of one source among the ``rows`` of another.

    Examples are the same if the same bytes are stored. Only those of equal size, or that agree in
    a few bytes, are read. A picture that was stored again in another way is not found.

    Args:
        source: to look at, up to 1,000 examples of it.
        others: to find them in.
        rows: positions in ``others``.
        most_bytes: after so many bytes of ``others`` no more of them are read.

    Returns:
        ``None`` if they cannot be compared: one of the two cannot give the bytes of its examples
        without decoding them, or one has files and the other an array.
    """
    own_marks, marks = source.stored_marks(), others.stored_marks()
    if own_marks is None or marks is None or source.stored_form != others.stored_form:
        return None
    # -1 marks what cannot be compared
    picked = [at for at in evenly_spaced(len(source), _LOOKED_AT) if own_marks[at] >= 0]
    at_rows = np.asarray(rows, dtype=np.int64)
    # same mark, such as the same size: only these can be equal
    alike = at_rows[np.isin(marks[at_rows], own_marks[picked])]
    known: dict[bytes, int] = {}
    bytes_read = count = 0
    # in random order: files are listed by class, and a part of them should be of all classes
    for at in np.random.default_rng(0).permutation(alike).tolist():
        if bytes_read > most_bytes:
            break
        content = _stored(others, at)
        bytes_read, count = bytes_read + len(content), count + 1
        if content:
            # of several equal ones any will do as a witness
            known[_digest(content)] = at
    pairs = [
        (at, known[mark])
        for at in (picked if known else ())
        if (mark := _digest(_stored(source, at))) in known
    ]
    return SharedExamples(
        looked_at=len(picked),
        of=len(source),
        shared=len(pairs),
        # those of another mark were compared as well, by the mark
        compared_with=len(at_rows) - (len(alike) - count),
        others=len(at_rows),
        first=(source.id_of(pairs[0][0]), others.id_of(pairs[0][1])) if pairs else None,
    )


def _stored(source: ExampleSource, index: int) -> bytes:
    """The stored bytes; none if they cannot be read, which is for a run to say."""
    try:
        return source.stored_bytes(index)
    except OSError:
        return b""


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
