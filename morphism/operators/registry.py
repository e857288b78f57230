"""The morphisms by kind, as a record names them."""

from __future__ import annotations

from typing import get_type_hints

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.morphism.operators.base import Morphism, require
from aiperf_hpc.morphism.operators.deeper import Deeper
from aiperf_hpc.morphism.operators.kernel_size import KernelSize
from aiperf_hpc.morphism.operators.skip import Skip
from aiperf_hpc.morphism.operators.wider import Wider
from aiperf_hpc.trial import MorphismData

MORPHISMS: dict[str, type[Morphism]] = {cls.kind: cls for cls in (Deeper, Wider, Skip, KernelSize)}


def from_data(data: MorphismData) -> Morphism:
    """Make a morphism of its record. Raises MorphismError when the data describes none."""
    values = dict(data)
    kind = values.pop("kind", None)
    cls = MORPHISMS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise MorphismError(f"no morphism of kind {kind!r}; known: {sorted(MORPHISMS)}")
    try:
        morphism = cls(**values)
    except TypeError as error:
        raise MorphismError(f"morphism {data}: {error}") from None
    for name, hint in get_type_hints(cls).items():
        if name in values:
            require(type(values[name]) is hint, f"morphism {data}: {name} is no {hint.__name__}")
    return morphism
