"""What the tests of the engine share."""

import pytest

from tests.limits import never_give_up_on_the_disk


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    never_give_up_on_the_disk(monkeypatch)
