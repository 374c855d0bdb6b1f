"""How long to search: ``quick`` unless ``--hypothesis-profile`` says otherwise."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("property.strategies")

slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "quick",
    max_examples=40,
    stateful_step_count=25,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=slow,
)
settings.register_profile(
    "thorough",
    max_examples=1_500,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=slow,
)


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("hypothesis_profile", default=None):
        settings.load_profile("quick")
