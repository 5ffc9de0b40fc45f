"""Baselines as files, and what a check says: lines, JSON and JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from pydantic import ValidationError

from pinscope.analysis.baseline import Baseline
from pinscope.analysis.check import Checked, Regression, regression_words
from pinscope.analysis.comparison import ComparedCell, change_words
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


def regression_line(experiment: str, regression: Regression) -> str:
    """One line of what is worse."""
    return f"{experiment}: {regression.words or 'all'}: {regression_words(regression)}"


def check_document(checked: Sequence[Checked]) -> dict[str, Any]:
    """``{"format", "passed", "experiments"}``; later versions may add keys."""
    return {
        "format": FORMAT,
        "passed": not any(result.regressions for result in checked),
        "experiments": [
            {
                "experiment": result.comparison.experiment,
                "regressions": [
                    {
                        "line": regression_line(result.comparison.experiment, regression),
                        "labels": dict(regression.labels),
                        "figure": regression.figure,
                        "ratio": getattr(regression, "ratio", None),
                    }
                    for regression in result.regressions
                ],
                "not_again": result.once,
                "comparison": comparison_object(result.comparison),
            }
            for result in checked
        ],
    }


def junit(checked: Sequence[Checked]) -> bytes:
    """JUnit XML: a suite an experiment, a case a cell; what is worse is a failure of its own.

    A cell that would not show the tolerance is skipped.
    """
    root = ET.Element("testsuites", name="pinscope check")
    for result in checked:
        name = result.comparison.experiment
        suite = ET.SubElement(root, "testsuite", name=name)
        failing = {item.key for item in result.regressions if isinstance(item, ComparedCell)}
        for cell in result.cells:
            if cell.key not in failing:
                case = ET.SubElement(suite, "testcase", classname=name, name=cell.words or "all")
                if cell.verdict == "unknown":
                    ET.SubElement(case, "skipped", message="measured once: not told from chance")
                elif not result.tells(cell):
                    limit = change_words(result.tolerance)
                    ET.SubElement(case, "skipped", message=f"{limit} more would not show: too few runs")
        for regression in result.regressions:
            where = regression.words or "all"
            if isinstance(regression, ComparedCell) and not regression.is_first:
                where += f", {regression.value.title}"
            case = ET.SubElement(suite, "testcase", classname=name, name=where)
            ET.SubElement(case, "failure", message=regression_words(regression))
        for tag in ("testcase", "failure", "skipped"):
            suite.set({"testcase": "tests", "failure": "failures"}.get(tag, tag), str(len(list(suite.iter(tag)))))
    ET.indent(root)
    return bytes(ET.tostring(root, "utf-8", xml_declaration=True)) + b"\n"


def write_result(path: Path, checked: Sequence[Checked]) -> None:
    """Write what a check found to a file that is not there yet: .xml or .json.

    Raises:
        BadInput: another suffix.
    """
    write_new(path, [junit(checked) if path.suffix.lower() == ".xml" else _json(checked)])


def _json(checked: Sequence[Checked]) -> bytes:
    return (json.dumps(check_document(checked), ensure_ascii=False, allow_nan=False) + "\n").encode()


def check_suffix(path: Path) -> None:
    """Refuse a file of another format, before anything begins."""
    if path.suffix.lower() not in (".xml", ".json"):
        raise BadInput("the suffix tells the format of a check; there are: .xml (JUnit), .json")
