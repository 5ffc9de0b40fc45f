"""Baselines as files, and what a check says: lines, JSON and JUnit XML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from pydantic import ValidationError

from pinscope.analysis.check import Baseline, Checked, Regression, regression_words
from pinscope.analysis.comparison import change_words
from pinscope.errors import BadInput
from pinscope.report.comparison import comparison_object
from pinscope.store.new_file import write_new

FORMAT = 1
"""Version of the document; additive changes keep it."""


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write it to a file that is not there yet, a cell a line: so that version control shows which one changed."""
    write_new(path, (part.encode() for part in _parts(baseline)))


def _parts(baseline: Baseline) -> Iterator[str]:
    yield f'{{\n"format": {baseline.format},\n"experiments": ['
    for place, kept in enumerate(baseline.experiments):
        document = kept.model_dump(mode="json")
        cells = document.pop("cells")
        head = json.dumps(document, indent=1, ensure_ascii=False)
        yield f'{"," if place else ""}\n{head[:-2]},\n "cells": [\n'
        yield ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in cells)
        yield "\n ]\n}"
    yield "\n]\n}\n"


def read_baseline(path: Path) -> Baseline:
    """A file that :func:`write_baseline` wrote.

    Raises:
        BadInput: it is none, or cannot be read.
    """
    try:
        return Baseline.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path} is no baseline of pinscope check ({where}: {first['msg']})") from None


def regression_lines(result: Checked) -> list[str]:
    """A line of each that is worse."""
    return [
        f"{result.comparison.experiment}: {_where(worse)}: {regression_words(worse)}" for worse in result.regressions
    ]


def _where(worse: Regression) -> str:
    return worse.words if worse.is_first else worse.full_words


def check_document(checked: Sequence[Checked]) -> dict[str, Any]:
    """``{"format", "passed", "experiments"}``; later versions may add keys."""
    experiments = []
    for result in checked:
        comparison = comparison_object(result.comparison)
        regressions = [
            {"line": line, "labels": worse.labels, "figure": worse.figure, "ratio": getattr(worse, "ratio", None)}
            for line, worse in zip(regression_lines(result), result.regressions, strict=True)
        ]
        experiments.append(
            {"experiment": comparison["experiment"], "regressions": regressions, "not_again": result.once}
            | {"comparison": comparison}
        )
    passed = not any(result.regressions for result in checked)
    return {"format": FORMAT, "passed": passed, "experiments": experiments}


def junit(checked: Sequence[Checked]) -> bytes:
    """JUnit XML: a suite an experiment, a case a cell; what is worse is a failure of its own.

    A cell that would not show the tolerance is skipped.
    """
    root = ET.Element("testsuites", name="pinscope check")
    for result in checked:
        name, limit = result.comparison.experiment, change_words(result.tolerance)
        suite = ET.SubElement(root, "testsuite", name=name)
        cases = [(_where(worse), "failure", regression_words(worse)) for worse in result.regressions]
        failing = {worse.key for worse in result.regressions}
        for cell in (cell for cell in result.cells if cell.key not in failing):
            why = f"{limit} more would not show: too few runs"
            if cell.verdict == "unknown":
                why = "measured once: not told from chance"
            cases.append((cell.words, "" if result.tells(cell) else "skipped", why))
        for where, outcome, why in cases:
            case = ET.SubElement(suite, "testcase", classname=name, name=where)
            if outcome:
                ET.SubElement(case, outcome, message=why)
        outcomes = Counter(outcome for _, outcome, _ in cases)
        suite.attrib |= {
            "tests": str(len(cases)),
            "failures": str(outcomes["failure"]),
            "skipped": str(outcomes["skipped"]),
        }
    ET.indent(root)
    return bytes(ET.tostring(root, "utf-8", xml_declaration=True)) + b"\n"


SUFFIXES = (".xml", ".json")
"""Formats of what a check found: JUnit XML, and the document."""


def write_result(path: Path, checked: Sequence[Checked]) -> None:
    """Write what a check found to a file that is not there yet: .xml or .json."""
    if path.suffix.lower() == ".xml":
        write_new(path, [junit(checked)])
    else:
        write_new(path, [(json.dumps(check_document(checked), ensure_ascii=False, allow_nan=False) + "\n").encode()])
