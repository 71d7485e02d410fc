"""schemathesis: requests made from the document that the server publishes, valid and invalid ones, to every route.

Whatever comes, the answer is no 5xx, and has a status, a type and a body as the document says; what breaks the document
is refused.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]
# What a schema cannot say (which model is served, which messages a template takes) may be refused.
EXCLUDED = "positive_data_acceptance"


def schemathesis(url: str, examples: int, *options: str, hooks: str = "") -> None:
    """A run that must find nothing."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--warnings", "off"]
    command += ["--checks", "all", "--exclude-checks", EXCLUDED, "--max-examples", str(examples), "--no-color"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": hooks, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, timeout=HANG_S, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_valid_and_invalid_requests(server: tuple[str, int]):
    schemathesis(server[0], 20, "--generation-deterministic")


def test_valid_requests_that_reach_the_model(server: tuple[str, int]):
    hooks = "tests.attack.schemathesis_hooks"
    schemathesis(server[0], 30, "--mode", "positive", "--phases", "fuzzing", "--generation-deterministic", hooks=hooks)


@pytest.mark.slow
def test_many_requests_that_are_new_each_time(server: tuple[str, int]):
    schemathesis(server[0], 500, "--continue-on-failure")
