"""Write `requirements.lock`: the exact version of every package that any extra of tokenline needs.

Run from `make lock`. pip resolves as it would on a machine where nothing was set up (see `plain_pip`); nothing is
installed. A constraint binds only where a package is needed, so the pins of what PyTorch needs on Linux do no harm
elsewhere.
"""

from pathlib import Path

from plain_pip import plain_pip

EXTRAS = "torch,dev"
HEADER = "# Written by `make lock`; used as pip constraints by every install. Do not edit by hand.\n"


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    with plain_pip() as pip:
        pins = pip.resolve(f"{root}[{EXTRAS}]")
    pins.pop("tokenline")
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    (root / "requirements.lock").write_text(HEADER + "".join(lines))
    print(f"requirements.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
