"""What people read, in HTML and in Markdown: the answer, its reasons, its limits, and nothing that acts."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import plotly.graph_objects as go
import pytest
from markdown_it import MarkdownIt

from pinscope.charts.marks import Chart
from pinscope.cli.outcome import print_findings
from pinscope.records.run import HOST_MODEL_NOTE, Finding, Quantity, Reading, Table
from pinscope.report.facts import SEVERITY_WORDS, Document, environment_facts, parameter_facts, run_facts
from pinscope.report.html import CONTENT_SECURITY_POLICY
from pinscope.report.markdown import render_markdown
from pinscope.report.write import render, run_document
from pinscope.store.recordings import recorded_runs
from tests.data import synthetic

MIB = 2**20
HOSTILE = (
    "</script><script>bad()</script> <img src=x onerror=bad()> {{ 7*7*77 }} [a](javascript:bad()) `x` | **b** & \"'"
)


def page(*documents: Document) -> str:
    return render(documents, ".html").decode()


def text_of(content: str) -> str:
    """The page as it is read: without head, scripts and tags."""
    body = content.split("<body>", 1)[1]
    body = re.sub(r"<script.*?</script>", " ", body, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def markdown_text(content: bytes) -> str:
    """Markdown as it is read, with tables."""
    return text_of("<body>" + MarkdownIt().enable("table").render(content.decode()))


def readable(document: Document, kind: str) -> str:
    return text_of(page(document)) if kind == "html" else markdown_text(render_markdown([document]))


def with_reading(**parts: Any) -> Document:
    whole = synthetic.document("bandwidth")
    reading = Reading(**{"headline": (), "tables": (), "findings": ()} | parts)
    return Document(whole.run, whole.title, whole.question, whole.method, reading, [], whole.rows)


@pytest.fixture(scope="module")
def bandwidth() -> Document:
    return synthetic.document("bandwidth")


@pytest.fixture(params=["html", "markdown"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_answer_comes_before_charts_tables_and_method(kind: str, bandwidth: Document) -> None:
    read = readable(bandwidth, kind)

    places = [read.index(word) for word in (bandwidth.question, "Answer", "What to do:", "Tables", "Method")]
    if kind == "html":
        assert places[2] < read.index("More charts") < places[3]
    assert places[0] < places[1] < places[2] < places[3]
    assert places[1] < places[4]
    assert places[1] < read.index(bandwidth.reading.verdict or "-") < read.index(bandwidth.reading.headline[0].name)


def test_several_runs_begin_with_a_table_of_their_verdicts(bandwidth: Document) -> None:
    failed = with_reading()
    failed = replace(failed, run=failed.run.model_copy(update={"status": "failed"}))
    for read in (text_of(page(bandwidth, failed)), markdown_text(render_markdown([bandwidth, failed]))):
        places = [
            read.index(words) for words in ("Verdicts", bandwidth.reading.verdict or "", "No answer: the run failed.")
        ]
        assert places == sorted(places)
        assert places[-1] < read.index(bandwidth.question)


def test_everything_that_was_concluded_is_there(kind: str, bandwidth: Document) -> None:
    read = readable(bandwidth, kind)

    for quantity in bandwidth.reading.headline:
        assert quantity.name in read
    for finding in bandwidth.reading.findings:
        assert SEVERITY_WORDS[finding.severity] in read
        for part in (finding.title, finding.detail, finding.advice):
            assert part in read
    for table in bandwidth.reading.tables:
        assert table.title in read
    for name, value in run_facts(bandwidth.run) + environment_facts(bandwidth.run.environment):
        assert name in read
        assert value in read
    assert bandwidth.method in read
    assert bandwidth.run.notes[0] in read


def test_values_carry_their_units_and_missing_its_reason(kind: str) -> None:
    headline = (
        Quantity(name="Rate", value=55.5e9, unit="bytes/second", spread=0.004),
        Quantity(name="Pays from", value=None, unit="bytes", reason="never faster"),
    )
    table = Table(title="T", columns=("size", "time"), units=("bytes", "seconds"), rows=((16 * MIB, None), (8, 2e-6)))

    read = readable(with_reading(headline=headline, tables=(table,)), kind)

    for expected in ("55.5 GB/s", "± 0.4 %", "n/a", "never faster", "16 MiB", "2.00 µs"):
        assert expected in read


def test_the_worst_finding_stands_first(kind: str) -> None:
    findings = tuple(
        Finding(rule=word, severity=word, title=f"title {word}", detail="d", evidence=(), advice="a")
        for word in ("good", "note", "critical", "warning")
    )

    read = readable(with_reading(findings=findings), kind)

    places = [read.index(f"title {word}") for word in ("critical", "warning", "note", "good")]
    assert places == sorted(places)
    for sign in SEVERITY_WORDS.values():
        assert sign in read


def test_the_host_model_and_a_recording_say_what_they_are(kind: str, bandwidth: Document) -> None:
    host = readable(synthetic.document("bandwidth", lab="host"), kind)
    assert "host model (no GPU)" in host
    assert HOST_MODEL_NOTE in host
    recorded = readable(synthetic.changed(bandwidth, recording=True), kind)
    assert "Recording: a real run that ships with PinScope" in recorded
    plain = readable(bandwidth, kind)
    assert HOST_MODEL_NOTE not in plain
    assert "Recording:" not in plain


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_run_that_did_not_finish_says_so_and_why(kind: str, status: str, bandwidth: Document) -> None:
    read = readable(synthetic.changed(bandwidth, status=status, error="the reason"), kind)

    assert "the figures come from what it had stored" in read or "what it has stored so far" in read
    assert "Reason: the reason" in read


def test_a_run_that_failed_at_once_speaks_of_no_figures(kind: str, bandwidth: Document) -> None:
    read = readable(synthetic.changed(bandwidth, status="failed", observations=0, error="the reason."), kind)
    assert "This run failed: nothing was measured until then. Reason: the reason." in read
    assert "reason.." not in read
    assert "Nothing was measured" in readable(synthetic.document_of("bandwidth", []), kind)


def test_text_of_others_is_shown_as_it_stands_and_never_acts(kind: str) -> None:
    environment = synthetic.environment().model_copy(update={"host": HOSTILE})
    whole = synthetic.changed(
        synthetic.document("bandwidth"), environment=environment, notes=(HOSTILE,), status="failed", error=HOSTILE
    )
    figure = go.Figure(go.Scatter(x=[1], y=[1], name=HOSTILE))
    hostile = Document(
        whole.run, HOSTILE, HOSTILE, HOSTILE, whole.reading, [Chart("k", HOSTILE, HOSTILE, figure, HOSTILE)], []
    )

    content = (
        page(hostile) if kind == "html" else MarkdownIt().enable("table").render(render_markdown([hostile]).decode())
    )

    for dangerous in ("<script>bad", "<img", "onerror=bad()>", 'href="javascript', "<strong>b</strong>", "3773"):
        assert dangerous not in re.sub(r'id="plotly">[^<]*<|gzip;base64,[^"]*"', "", content)
    visible_text = text_of(content) if kind == "html" else text_of("<body>" + content)
    assert visible_text.count(HOSTILE) >= 4


def test_parameters_are_listed_by_title_with_their_units(bandwidth: Document) -> None:
    facts = dict(parameter_facts(bandwidth))

    assert facts["Copy sizes"].startswith("4 KiB, 16 KiB, 64 KiB")
    assert facts["Precision"] == "1.0 %"
    assert facts["Time limit"] == "2.00 s"
    assert facts["Host memory"] == "pinned, pageable, write_combined, mapped, registered"


def test_parameters_without_schema_are_listed_by_name() -> None:
    whole = synthetic.document("bandwidth")
    bare = Document(whole.run, "", "", "", whole.reading, [], [])

    assert dict(parameter_facts(bare))["repeats"] == "60"


def test_a_limit_that_does_not_exist_says_why() -> None:
    environment = synthetic.environment(0)
    limits = environment.limits.model_copy(update={"missing": {"memlock_headroom_bytes": "no limit: CAP_IPC_LOCK"}})

    facts = dict(environment_facts(environment.model_copy(update={"limits": limits})))

    assert facts["Lockable memory"] == "no limit: CAP_IPC_LOCK"
    assert facts["Control group headroom"] == "no limit"
    assert facts["Shared memory free"] == "32 GiB"


def test_a_link_is_told_now_and_at_best() -> None:
    environment = synthetic.environment()
    device = environment.devices[0]
    assert device.link is not None
    slow = device.model_copy(update={"link": device.link.model_copy(update={"generation_now": 1, "width_now": None})})

    facts = dict(environment_facts(environment.model_copy(update={"devices": (slow,)})))

    assert facts["GPU 0"] == device.name
    assert facts["GPU 0: Link now"].startswith("PCIe Gen1 x? (")
    assert facts["GPU 0: Link at best"] == "PCIe Gen5 x16, at most 57.6 GB/s of payload each way"


def test_the_page_forbids_itself_every_connection(bandwidth: Document) -> None:
    content = page(bandwidth)

    assert (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(CONTENT_SECURITY_POLICY)}">'
        in content.replace("&#39;", "&#x27;")
    )
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none';")
    assert not re.findall(r'(?:src|href)="(?!data:)', content)


def test_plotly_is_embedded_once_and_the_page_stays_small() -> None:
    large = synthetic.document_of("bandwidth", synthetic.bandwidth_rows(repeats=30))
    both = page(large, synthetic.document("overlap"))

    assert both.count('id="plotly"') == 1
    assert len(both.encode()) < 6e6
    packed = re.findall(r'id="plotly">([^<]+)<', both)[0]
    assert gzip.decompress(base64.b64decode(packed)).startswith(b"/**\n* plotly.js v")


def test_the_raw_data_is_attached_as_the_json_document(bandwidth: Document) -> None:
    packed = re.findall(r'href="data:application/gzip;base64,([^"]+)"', page(bandwidth))[0]

    assert json.loads(gzip.decompress(base64.b64decode(packed))) == json.loads(json.dumps(run_document(bandwidth)))


def test_figures_are_embedded_without_a_page_template(bandwidth: Document) -> None:
    figures = [
        json.loads(read)
        for read in re.findall(r'<script type="application/json">(.*?)</script>', page(bandwidth), flags=re.DOTALL)
    ]

    assert len(figures) == len(bandwidth.charts)
    assert all("template" not in figure["layout"] for figure in figures)


def test_numbers_in_markdown_tables_are_aligned_to_the_right() -> None:
    table = Table(title="T", columns=("kind", "size"), units=("text", "bytes"), rows=(("a|b", MIB),))

    lines = render_markdown([with_reading(tables=(table,))]).decode().splitlines()

    start = lines.index("| kind | size |")
    assert lines[start + 1 : start + 3] == ["| :--- | ---: |", r"| a\|b | 1 MiB |"]


@pytest.mark.parametrize(("experiment", "place"), [("trace", "traced program"), ("timeline", "live view")])
def test_a_run_that_chose_no_gpu_names_those_of_its_machine(experiment: str, place: str) -> None:
    (run,) = (run for run in recorded_runs() if run.experiment == experiment)
    assert dict(run_facts(run))["Measured on"] == f"{place}: NVIDIA H200"
    without = run.model_copy(update={"environment": run.environment.model_copy(update={"devices": ()})})
    assert dict(run_facts(without))["Measured on"] == place


CODE = 'def pinned_buffer(nbytes):\n    """<b>&amp;</b> `*_`"""\n    return nbytes < 2**30\n'


@pytest.fixture
def finding() -> Finding:
    return Finding(rule="rule", severity="note", title="Title", detail="Detail.", evidence=(), advice="Do.", code=CODE)


@pytest.fixture
def document(finding: Finding) -> Document:
    whole = synthetic.document("overlap")
    return replace(whole, reading=whole.reading.model_copy(update={"findings": (finding,)}))


def test_every_format_shows_it_as_it_was_written(
    document: Document, finding: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"```python\n{CODE.rstrip()}\n```\n" in render([document], ".md").decode()
    html = render([document], ".html").decode()
    assert "<b>&amp;</b>" not in html
    assert unescape(html.partition("<pre><code>")[2].partition("</code></pre>")[0]) == CODE
    assert run_document(document)["run"]["findings"][0]["code"] == CODE
    print_findings([finding])
    assert CODE in capsys.readouterr().out


def test_a_finding_without_code_shows_no_empty_box(document: Document, finding: Finding) -> None:
    bare = document.reading.model_copy(update={"findings": (finding.model_copy(update={"code": None}),)})
    assert "<pre>" not in render([replace(document, reading=bare)], ".html").decode()
