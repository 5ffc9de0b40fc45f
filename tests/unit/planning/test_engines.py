"""Settings of engines: the value to give each, so that all its processes together pin no more than is safe."""

from __future__ import annotations

import pytest

from pinscope.planning.plan import SETTINGS, engines_table

GIB = 2**30


@pytest.mark.parametrize(
    ("safe", "processes", "values"),
    [
        (64 * GIB, 1, ["64", "32", "68", str(64 * GIB), "64"]),
        (64 * GIB, 8, ["64", "4", "8", str(8 * GIB), "8"]),
        (63 * GIB, 8, ["63", "3.93", "8", str(63 * GIB // 8), "7.87"]),
        (GIB // 2, 8, ["0.5", "0.03", "0", str(GIB // 16), "0.06"]),
    ],
)
def test_the_values_fill_what_is_safe_in_the_unit_of_each_engine(safe: int, processes: int, values: list[str]) -> None:
    settings = engines_table(safe, processes)
    assert settings is not None
    assert [row[2] for row in settings.rows] == values
    for setting, value in zip(SETTINGS, values, strict=True):
        users = processes if setting.of == "each process" else 1
        assert float(value) * setting.unit_bytes * users * (2 if setting.rounds else 1) <= safe


def test_where_it_is_not_known_what_is_safe_no_value_is_named() -> None:
    assert engines_table(None, 4) is None
