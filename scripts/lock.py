"""Write `requirements.lock`: the exact version of every package that any extra of tokenline needs.

Run from `make lock`. pip resolves (nothing is installed); local version parts such as torch's `+cpu` are
dropped, so that the same lock serves machines whose index offers another build of the same release.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

EXTRAS = "dev,route,train"
HEADER = "# Written by `make lock`; used as pip constraints by every install. Do not edit by hand.\n"


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
            f"{root}[{EXTRAS}]",
        ]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)
        installs = json.loads(report.read_text())["install"]
    pins = {item["metadata"]["name"].lower(): item["metadata"]["version"].split("+")[0] for item in installs}
    pins.pop("tokenline")
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    (root / "requirements.lock").write_text(HEADER + "".join(lines))
    print(f"requirements.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
