"""Export of a mesh to a tracing backend: a failed, delegated, retried task is sent to Arize Phoenix by
OTLP and read through the API of Phoenix, with its errors and its parents.

    python main.py FAULTLINE INSTALLED PICTURE

FAULTLINE is the binary, INSTALLED the directory of `install`, PICTURE the file to write."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

FAULTLINE, INSTALLED, PICTURE = map(pathlib.Path, sys.argv[1:4])
HERE = pathlib.Path(__file__).parent
SCRIPT = 'delegate script { fail UNAVAILABLE code=LEDGER_7 text="the ledger is away" }'
SEND = "lf.a2a.v1.A2AService/SendMessage"
# The expected spans: depth in the tree, name, whether it is an error.
TREE = [
    (0, "POST /", False),
    (1, SEND, False),
    (2, SEND, False),
    (3, "invoke_agent script", True),
    (4, "attempt script", True),
    (5, "attempt script", True),
    (6, SEND, False),
    (7, SEND, False),
    (8, "invoke_agent script", True),
    (9, "attempt script", True),
    (10, "attempt script", True),
    (9, "attempt script", True),
    (10, "attempt script", True),
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def until(what, within, look):
    end = time.monotonic() + within
    while True:
        try:
            seen = look()
        except OSError:
            seen = None
        if seen:
            return seen
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {within} s")
        time.sleep(0.2)


def phoenix(directory, processes):
    port, grpc = free_port(), free_port()
    env = os.environ | {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_WORKING_DIR": directory,
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    log = open(pathlib.Path(directory) / "phoenix.log", "w")
    command = [INSTALLED / "python/bin/phoenix", "serve"]
    processes.append(
        subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    )
    url = f"http://127.0.0.1:{port}"
    until("Phoenix serves", 180, lambda: get(f"{url}/v1/projects"))
    return url, f"http://127.0.0.1:{grpc}"


def mesh(directory, otlp, processes):
    env = os.environ | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "FAULTLINE_LOG__OPENINFERENCE": "true",
        "FAULTLINE_COORDINATOR__RETRY_BASE_MS": "50",
    }
    command = [FAULTLINE, "up", "--listen", "127.0.0.1:0", "--hub", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--data", directory], env=env, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )
    processes.append(process)
    ready = process.stdout.readline().split()
    assert ready[:1] == ["ready"], ready
    return ready[1]


def send(url):
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": SCRIPT}]}
    params = {"tenant": "script", "message": message}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    headers = {"content-type": "application/json", "a2a-version": "1.0"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["result"]["task"]


def spans_of(url, trace):
    page = get(f"{url}/v1/projects/default/spans?limit=1000")["data"]
    spans = [span for span in page if span["context"]["trace_id"] == trace]
    return spans if len(spans) >= len(TREE) else None


def tree_of(spans):
    below = {}
    for span in sorted(spans, key=lambda span: span["start_time"]):
        below.setdefault(span.get("parent_id") or None, []).append(span)
    rows = []

    def walk(parent, depth):
        for span in below.get(parent, []):
            rows.append((depth, span["name"], span["status_code"] == "ERROR"))
            walk(span["context"]["span_id"], depth + 1)

    walk(None, 0)
    return rows


def check(spans, task):
    found = tree_of(spans)
    shown = "\n".join("  " * depth + name + (" ✗" if error else "") for depth, name, error in found)
    assert found == TREE, f"the tree in Phoenix differs:\n{shown}"
    print(shown)
    failure = task["metadata"]["faultline.dev/failure"]
    born = next(s for s in spans if s["context"]["span_id"] == failure["spanId"])
    assert born["status_message"] == "the ledger is away", born
    events = [event["name"] for event in born["events"]]
    assert "exception" in events and "faultline.failure" in events, born["events"]
    assert born["span_kind"] == "AGENT", born["span_kind"]
    attributes = born["attributes"]
    for key, value in (
        ("faultline.failure.id", failure["id"]),
        ("faultline.role", "worker"),
        ("error.type", "UNAVAILABLE"),
        ("gen_ai.agent.name", "script"),
    ):
        assert attributes.get(key) == value, (key, attributes)
    edge = next(s for s in spans if not s.get("parent_id"))
    assert edge["attributes"]["a2a.task.id"] == task["id"], edge


def main():
    processes = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            url, otlp = phoenix(directory, processes)
            task = send(mesh(directory, otlp, processes))
            assert task["status"]["state"] == "TASK_STATE_FAILED", task
            trace = task["metadata"]["faultline.dev/failure"]["traceId"]
            spans = until("Phoenix has all spans", 60, lambda: spans_of(url, trace))
            check(spans, task)
            project = next(p for p in get(f"{url}/v1/projects")["data"] if p["name"] == "default")
            page = f"{url}/projects/{project['id']}/traces/{trace}"
            # Node resolves packages from the directory of the script.
            script = INSTALLED / "shot.js"
            script.write_text((HERE / "shot.js").read_text())
            subprocess.run(["node", script, page, PICTURE.resolve()], check=True, timeout=180)
            print(f"wrote {PICTURE}")
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


main()
