"""``pinscope exporter`` with real clients: promtool, a real Prometheus that scrapes it and evaluates its rules."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from prometheus_client import CollectorRegistry, generate_latest

from pinscope.live.sampler import History
from pinscope.monitoring.server import MetricsServer, SnapshotCollector
from tests.data.synthetic_snapshot import TAKEN_AT, device, holder, link
from tests.data.waiting import until
from tests.integration.processes import in_the_background
from tests.unit.monitoring.test_metrics import whole_snapshot
from tests.unit.monitoring.test_monitoring_files import FOLDER, expressions

ROOT = Path(__file__).parents[2]
ALERT_TESTS = ROOT / "tests" / "data" / "alerts" / "alerts_test.yaml"


def tool(name: str) -> str:
    program = shutil.which(name)
    assert program, f"no {name} here: apt-get install prometheus"
    return program


def promtool(*arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        [tool("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def get(url: str, **headers: str) -> tuple[int, str]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    try:
        connection.request("GET", f"{where.path}?{where.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def exporter(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running exporter on a free port, and the address it told."""
    with in_the_background("exporter", "--port", "0", "--no-gpu", "--interval", "0.2", *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("PinScope's metrics are at http://127.0.0.1:"), line
        yield process, line.split()[4]


def stopped_by(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """It ends well on a signal; what it wrote on stderr."""
    process.send_signal(number)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    return errors


def test_promtool_accepts_the_rules_and_their_tests_pass() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(FOLDER / "alerts.yaml"))
    assert "SUCCESS" in promtool("test", "rules", str(ALERT_TESTS))


def test_promtool_accepts_every_metric() -> None:
    seen = whole_snapshot()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: History(latest=seen), lambda: TAKEN_AT))
    assert promtool("check", "metrics", text=generate_latest(registry).decode()) == ""


def test_the_exporter_reads_this_host_until_it_is_stopped() -> None:
    with exporter() as (process, url):
        until(lambda: "pinscope_host_memory_bytes" in get(url)[1])
        text = get(url)[1]
        assert "\npinscope_up 1.0\n" in text
        assert promtool("check", "metrics", text=text) == ""
        assert get(url, Host="evil.example")[0] == 403
        assert process.stderr is not None
        assert process.stderr.readline() == "pinscope: cannot be read: GPUs: the driver was not asked\n"
        assert "Traceback" not in stopped_by(process, signal.SIGTERM)


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[str]:
    """A Prometheus on loopback that scrapes four times a second and evaluates the rules that ship."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    configuration = folder / "prometheus.json"  # JSON is YAML
    scrape = {"job_name": "pinscope", "static_configs": [{"targets": targets}]}
    rules = str(FOLDER / "alerts.yaml")
    whole = {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
        "rule_files": [rules], "scrape_configs": [scrape],
    }  # fmt: skip
    configuration.write_text(json.dumps(whole))
    promtool("check", "config", str(configuration))
    log = (folder / "log").open("w")
    with log, subprocess.Popen(
        [tool("prometheus"), f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    ) as process:  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def query(base: str, expression: str) -> list[dict[str, Any]]:
    status, text = get(f"{base}/api/v1/query?query={quote(expression)}")
    answer = json.loads(text)
    assert (status, answer["status"]) == (200, "success"), expression
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def is_ready(base: str) -> bool:
    try:
        return get(f"{base}/-/ready")[0] == 200
    except OSError:
        return False


def test_a_real_prometheus_scrapes_evaluates_the_rules_and_answers_the_dashboard(tmp_path: Path) -> None:
    """A host whose memory is nearly all pinned, with a GPU on a narrow link: the alerts must become pending."""
    good = whole_snapshot()
    much = good.host.total_bytes * 9 // 10
    scarce = {
        "pinned_bytes": much, "pinned_least_bytes": much, "other_pinned_bytes": much // 2,
        "available_bytes": good.host.total_bytes // 20,
    }  # fmt: skip
    bad = good.model_copy(
        update={
            "host": good.host.model_copy(update=scarce),
            "devices": (device(link=link(width_now=4)),),
            "holders": (holder(1, registered_bytes=7, locked_bytes=8, rounding_bytes=9, cgroup_headroom_bytes=6),),
        }
    )
    history = History(latest=bad)
    metrics = SnapshotCollector(lambda: history, lambda: TAKEN_AT)
    with exporter() as (process, real), MetricsServer(metrics, port=0) as made:
        here, there = urlsplit(real).netloc, urlsplit(made.url).netloc
        with prometheus(tmp_path, here, there) as base:
            until(lambda: is_ready(base))
            until(lambda: len(query(base, 'up{job="pinscope"} == 1')) == 2)
            assert query(base, f'pinscope_host_memory_bytes{{instance="{here}"}} > 0')
            (pinned,) = query(base, f'pinscope_host_pinned_bytes{{instance="{there}"}}')
            assert float(pinned["value"][1]) == bad.host.pinned_bytes
            alerts = f'ALERTS{{instance="{there}"}}'  # of rules that Prometheus evaluates one after the other
            pending = until(lambda: len(query(base, alerts)) >= 3 and query(base, alerts))
            assert {alert["metric"]["alertname"] for alert in pending} == {
                "PinnedMemoryHigh", "PinnedMemoryVeryHigh", "GpuLinkFewerLanes",
            }  # fmt: skip
            groups = json.loads(get(f"{base}/api/v1/rules")[1])["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert len(rules) == (FOLDER / "alerts.yaml").read_text().count("- alert:")
            assert {rule["health"] for rule in rules} == {"ok"}
            for expression in expressions():
                asked = expression.replace("$instance", there).replace("[5m]", "[10s]")
                until(lambda asked=asked: query(base, asked))  # type: ignore[misc]
        stopped_by(process, signal.SIGHUP)
