"""What a case is, and what it gets to work with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.data import Sizes
from bench.measure import Clock, Result
from bench.stores import Stores


@dataclass(frozen=True)
class Bench:
    """What a case gets."""

    sizes: Sizes
    stores: Stores
    clock: Clock


Case = Callable[[Bench], Iterator[Result]]
"""Gives the lines of the table; its docstring says what both sides do."""
