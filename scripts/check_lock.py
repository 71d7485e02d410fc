"""Check that pip, on a machine where nothing was set up, can install tokenline with the versions of the lock.

Fails where a pin contradicts another, or names a release that the index does not have; and where the lock lacks a
package, so that what is installed would change from one day to the next. Installs nothing.
"""

import subprocess
import sys
from pathlib import Path

from lock import EXTRAS
from plain_pip import plain_pip


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    lines = (root / "requirements.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    with plain_pip() as pip:
        try:
            found = pip.resolve("--constraint", str(root / "requirements.lock"), f"{root}[{EXTRAS}]")
        except subprocess.CalledProcessError:
            sys.exit("requirements.lock cannot be installed from the package index; `make lock` writes a new one")
    found.pop("tokenline")
    missing = [name for name, version in found.items() if pins.get(name) != version]
    if missing:
        sys.exit(f"requirements.lock lacks {', '.join(missing)}; `make lock` writes a new one")
    print(f"requirements.lock: the index has all of it ({len(found)} packages needed here)")


if __name__ == "__main__":
    main()
