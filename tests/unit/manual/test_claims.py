"""The page of claims: every claim has an answer, and every answer says which recording shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pinscope.errors import UnknownName
from pinscope.records.run import Reading, good, quantity, table
from pinscope.store.recordings import recorded_runs, recording_name
from tests.data.quoted_figures import QUOTED, figure, renewed

PAGE = (Path(__file__).parents[3] / "docs" / "claims-table.md").read_text()
ROW = re.compile(r"^\| ([A-E])(\d+) \| (.+?) \| \*\*(.+?)\.\*\* (.+) \|$", re.MULTILINE)
"""Text, number, claim, verdict and answer."""
VERDICTS = ("Holds", "In part", "Does not hold", "Not measured")
CLAIMS = {"A": 26, "B": 47, "C": 29, "D": 43, "E": 34}
"""Text → its claims, figures and pieces of code: none is left out."""


def test_every_claim_has_its_row_and_the_table_at_the_top_counts_their_verdicts() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) == len(re.findall(r"^\| [A-E]\d", PAGE, re.MULTILINE))
    for text, count in CLAIMS.items():
        assert [int(number) for one, number, *_ in rows if one == text] == list(range(1, count + 1))
        verdicts = [verdict for one, _, _, verdict, _ in rows if one == text]
        counts = [count, *(verdicts.count(verdict) for verdict in VERDICTS)]
        assert sum(counts[1:]) == count
        (line,) = re.findall(rf"^\| \[{text}\. .*", PAGE, re.MULTILINE)
        assert line.split(" | ", 1)[1] == f"{' | '.join(map(str, counts))} |"


def test_every_answer_names_the_recordings_of_its_figures_and_links_their_experiments() -> None:
    names = {recording_name(run): run.experiment for run in recorded_runs()}
    for text, number, _, verdict, answer in ROW.findall(PAGE):
        row = f"{text}{number}"
        at_end = re.findall(r"\[([\w-]+)\]\(experiments/(\w+)\.md\)", answer)
        assert all(names[recording] == experiment for recording, experiment in at_end), row
        quoted = {(recording, target) for _, target, recording, _ in QUOTED.findall(answer)}
        assert quoted <= {(recording, f"experiments/{names[recording]}.md") for recording, _ in at_end}, row
        assert "](" in answer or verdict not in ("Holds", "In part"), row


def test_every_row_that_another_one_points_to_is_there() -> None:
    there = {text + number for text, number, *_ in ROW.findall(PAGE)}
    assert set(re.findall(r"\b[A-E]\d{1,2}\b", QUOTED.sub("", PAGE))) <= there


def reading() -> Reading:
    """A headline, evidence of the same name and another, and a table."""
    rate = quantity("Rate", 55e9, "bytes/second")
    evidence = (quantity("Rate", 1e9, "bytes/second"), quantity("Slower", 6.5, "ratio"))
    rows = [("pinned", 2**20, 3e-3), ("pinned", 2**30, 4e-3), ("pageable", 2**30, None)]
    columns = {"memory": "text", "size": "bytes", "time": "seconds"}
    return Reading(
        headline=(rate,), tables=(table("All", columns, rows),),
        findings=(good("a", *evidence, title="", detail=""), good("b", quantity("Twice", 1, "count"), title="",
                  detail=""), good("c", quantity("Twice", 2, "count"), title="", detail="")),
    )  # fmt: skip


def test_a_figure_is_found_by_its_name_or_as_a_cell_and_written_with_its_unit() -> None:
    page = 'It is [?](x.md "bandwidth-h200: Rate"), [?](x.md "bandwidth-h200: All > pinned > 1 GiB > time").'
    assert renewed(page, {"bandwidth-h200": reading()}) == page.replace("[?]", "[55.0 GB/s]", 1).replace(
        "[?]", "[4.00 ms]"
    )
    assert figure(reading(), "Slower") == "6.50 times"
    assert figure(reading(), "All > pageable > time") == "n/a"


def test_a_figure_that_is_not_there_or_not_one_is_refused() -> None:
    for name in ["Unknown", "Twice", "All > pinned > time", "All > pinned > 1 GiB > age", "None > a"]:
        with pytest.raises(UnknownName, match="figures"):
            figure(reading(), name)
