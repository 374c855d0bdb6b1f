"""Timing: sides that take turns, and the best round of each."""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

Action = Callable[[], Any]
Steps = Sequence[Action]
Side = Callable[[], AbstractContextManager[Steps]]
"""Prepares outside the clock, gives the steps to time one after the other, and clears up."""

FLAT = 1.5
"""A cost is flat if it grows by no more than this, from the smallest to the largest store."""

# Short cases go on until enough seconds were measured, as the machine is not ours alone; on a slow
# disk long ones end early.
_ENOUGH, _TOO_MUCH, _MOST_ROUNDS = 3.0, 12.0, 60


@dataclass(frozen=True)
class Result:
    """One line of the table; times are in seconds per operation of the case."""

    case: str
    ours: float
    raw: float | None = None
    limit: float | None = None
    growth: float | None = None
    raw_growth: float | None = None
    growth_limit: float | None = None
    at_most: float | None = None
    """A limit in seconds, where there is nothing to compare with."""

    @property
    def ratio(self) -> float | None:
        return None if self.raw is None else self.ours / self.raw

    @property
    def ok(self) -> bool:
        ratio = self.ratio
        slow = self.limit is not None and ratio is not None and ratio > self.limit
        slow = slow or (self.at_most is not None and self.ours > self.at_most)
        grows = (
            self.growth is not None
            and self.growth_limit is not None
            and self.growth > self.growth_limit
        )
        return not slow and not grows


def repeated(action: Action) -> Side:
    """A side of one step that needs no preparation."""
    return lambda: nullcontext((action,))


class Clock:
    """Measures sides against each other."""

    def __init__(self, rounds: int, profile: bool = False) -> None:
        self._rounds, self._profile = rounds, profile

    def best(self, sides: Mapping[str, Side], operations: int = 1) -> dict[str, float]:
        """The best time of each side, in seconds per operation.

        The sides take turns step by step. Of each step the best round counts, so that a hiccup
        of the disk in one step does not spoil a whole round.
        """
        best: dict[str, list[float]] = {name: [] for name in sides}
        turns, spent = list(sides), 0.0
        for played in range(_MOST_ROUNDS):
            if (played >= self._rounds and spent > _ENOUGH) or (played > 2 and spent > _TOO_MUCH):
                break
            times = _round(sides, turns)
            for name, found in times.items():
                spent += sum(found)
                best[name] = list(map(min, best[name] or found, found))
            turns.reverse()  # nobody always comes first
        if self._profile:
            _profile(sides)
        return {name: sum(found) / operations for name, found in best.items()}

    def versus(
        self,
        case: str,
        limit: float | None,
        ours: Side,
        raw: Side,
        *,
        operations: int = 1,
    ) -> Result:
        """One line of the table."""
        found = self.best({"ours": ours, "raw": raw}, operations)
        return Result(case, found["ours"], found["raw"], limit)


def _round(sides: Mapping[str, Side], turns: Sequence[str]) -> dict[str, list[float]]:
    with ExitStack() as stack:
        steps = {name: stack.enter_context(sides[name]()) for name in turns}
        times: dict[str, list[float]] = {name: [] for name in turns}
        for actions in zip(*steps.values(), strict=True):
            for name, action in zip(turns, actions, strict=True):
                times[name].append(_timed(action))
    return times


def _timed(action: Action) -> float:
    gc.collect()
    started = perf_counter()
    result = action()
    elapsed = perf_counter() - started
    del result  # freeing the result is nobody's cost
    return elapsed


def _profile(sides: Mapping[str, Side]) -> None:
    """What our sides spend their time with, on stderr."""
    for name, side in sides.items():
        if name.startswith("ours"):
            profile = cProfile.Profile()
            with side() as steps:
                for action in steps:
                    profile.runcall(action)
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(15)
