"""pip as a machine has it on which nothing was set up: no configuration, no folders of wheels, no constraints.

What this machine has beside the package index (a small build of PyTorch on its disk, say) must not decide what the lock
says. The index itself stays the one this machine is told to use, if it is told so by PIP_INDEX_URL; so do certificates
and proxies. A new pip is used, whatever the environment has: it reads the metadata of a large wheel without fetching
the wheel.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

KEPT = ("PIP_INDEX_URL", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
PIP = "pip>=25,<27"


@contextlib.contextmanager
def plain_pip() -> Iterator["Resolver"]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_") or key in KEPT}
        environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        home = Path(folder) / "pip"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home), PIP]
        subprocess.run(command, env=environment, check=True)
        yield Resolver(environment | {"PYTHONPATH": str(home)}, Path(folder) / "report.json")


class Resolver:
    def __init__(self, environment: dict[str, str], report: Path):
        self._environment = environment
        self._report = report

    def resolve(self, *arguments: str) -> dict[str, str]:
        """What `pip install ARGUMENTS` would install here: version by name, both as the index says them. Installs
        nothing, and reads metadata only. Raises CalledProcessError after pip has said on stderr what cannot be met.
        """
        command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed"]
        command += ["--use-feature=fast-deps", "--only-binary", ":all:", "--report", str(self._report), *arguments]
        subprocess.run(command, env=self._environment, check=True)
        installs = json.loads(self._report.read_text())["install"]
        return {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in installs}


def canonical(name: str) -> str:
    """One spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
