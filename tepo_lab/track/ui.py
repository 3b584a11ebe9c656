"""`tepo-lab ui`: MLflow's own pages over the home's mirror, served while the command runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from tepo_lab.errors import RecordError, ResourceError
from tepo_lab.track import ENVIRONMENT
from tepo_lab.track.address import artifact_folder, database_file, masked, own_address, shown, tracking_address

START_SECONDS = 180.0
STOP_SECONDS = 10.0

#: A proxy in the environment must not come between us and our own machine.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def serve(
    home: Path,
    on_ready: Callable[[str], None],
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    tracking_uri: str | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve the home's mirror until interrupted (Ctrl-C, SIGTERM or SIGHUP).

    Args: `on_ready` is given the address of the newest sweep's runs once it answers; `port` 0 takes a free one;
    `tracking_uri` as for `tracking_address`; `on_start` is called before the wait for the server. When the URI is a
    running server's address there is nothing to serve: `on_ready` is given it.
    Raises `RecordError` when there is no database yet, `ResourceError` when the port is taken or the server dies.
    """
    uri = tracking_address(home, tracking_uri)
    if uri.startswith(("http://", "https://")):
        on_ready(shown(uri))
        return
    endings = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _interrupt) for number in endings}
    try:
        with running_server(home, port=port, host=host, tracking_uri=tracking_uri, on_start=on_start) as (
            address,
            server,
        ):
            on_ready(f"{address}/{_first_page(address)}")
            if server.wait():
                raise ResourceError(f"The MLflow server at {address} ended by itself (exit code {server.returncode}).")
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def running_server(
    home: Path,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    tracking_uri: str | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An MLflow server over the home's mirror as a child process: its address and process, once it answers.

    It runs in a process group of its own, which is ended on the way out. `on_start` is called before the wait.
    Raises as `serve` does.
    """
    uri = tracking_address(home, tracking_uri)
    if uri == own_address(home) and not database_file(home).exists():
        raise RecordError(f"There is no MLflow database in {home} yet: run something first: tepo-lab run panel-e")
    port = _usable_port(host, port)
    on_start()
    artifacts = str(artifact_folder(home))
    command = [sys.executable, "-P", "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--default-artifact-root", artifacts, "--artifacts-destination", artifacts]
    # uvicorn looks for its application in the working folder first, unless it is given another; and the server starts
    # Python again: no process imports a module of the folder where it was started.
    command += ["--uvicorn-opts", f"--app-dir={os.devnull}"]
    # The URI, which may contain a password, is not an argument: every user of the machine can read those. Background
    # jobs serve model evaluation, which nothing here uses; they cost processes and memory.
    own = {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONSAFEPATH": "1"}
    environment = ENVIRONMENT | os.environ | own | {"MLFLOW_LOGGING_LEVEL": "WARNING"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            address = f"http://{host}:{port}"
            _wait_until_it_answers(address, server, log)
            yield address, server
        finally:
            _end_group(server)


def _usable_port(host: str, port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ResourceError(
                f"Port {port} on {host} cannot be used ({error.strerror}): give another with --port (0: a free one)."
            ) from None
        return int(probe.getsockname()[1])


def _wait_until_it_answers(address: str, server: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            log.seek(0)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            reason = masked(lines[-1].strip()) if lines else "it printed nothing"
            raise ResourceError(f"The MLflow server did not start (exit code {server.returncode}): {reason}")
        try:
            with _DIRECT.open(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise ResourceError(f"The MLflow server did not answer at {address} within {START_SECONDS:.0f} s: try again.")


def _first_page(address: str) -> str:
    """The newest sweep's runs by name, since MLflow itself opens on pages for language-model applications."""
    query = json.dumps({"max_results": 2, "order_by": ["last_update_time DESC"]}).encode()
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/experiments/search", query, {"Content-Type": "application/json"}
    )
    with _DIRECT.open(request, timeout=60) as answer:
        experiments = json.load(answer).get("experiments", [])
    sweep = next((item["experiment_id"] for item in experiments if item["name"] != "Default"), None)
    return f"#/experiments{'' if sweep is None else f'/{sweep}/runs'}?workflowType=machine_learning"


def _end_group(server: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_SECONDS)
    # Workers that outlive the server.
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
