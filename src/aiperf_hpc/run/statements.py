"""What a witness says of a run: which head of the primary's journal it was shown, and when."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

from pydantic import Field

from aiperf_hpc.run.file_clock import Time
from aiperf_hpc.run.heads import Head, Sha256
from aiperf_hpc.trial import Value

NOTHING: Final = "0" * 64
"""In the place of the hash of a statement before the first."""

RunId = Annotated[str, Field(min_length=1, max_length=200)]
Number = Annotated[int, Field(ge=1, lt=2**53)]


class Statement(Value):
    """A witness was shown a head of a run's primary journal.

    Each is chained to the one before it of the same witness, and to the one before it of the same
    run: none of either can be left out or put in another place unseen.
    """

    v: Literal[1] = 1
    number: Number
    """Of all of this witness, from 1."""
    previous: Sha256
    """SHA-256 of the line of the witness's statement before."""
    run: RunId
    owner: Sha256
    """SHA-256 of what whoever shows this run's heads has to know."""
    run_number: Number
    """Of this run's at this witness, from 1."""
    run_previous: Sha256
    """SHA-256 of the line of this run's statement before."""
    head: Head
    utc: Annotated[Time, Field(ge=0.0)]
    """When it was shown, by the witness's clock, UTC seconds."""
    signature: Annotated[str, Field(max_length=1000)] = ""
    """The witness's signature of ``message``, as OpenSSH writes it."""

    @property
    def message(self) -> bytes:
        """What is signed: the statement as JSON, but for its signature."""
        return self.model_dump_json(exclude={"signature"}).encode()

    @property
    def line(self) -> bytes:
        """The whole of it, as it stands in the witness's log without the end of the line."""
        return self.model_dump_json().encode()

    @property
    def sha256(self) -> str:
        """What the next statement says of this one."""
        return hashlib.sha256(self.line).hexdigest()
