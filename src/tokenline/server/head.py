"""What all chunks of one answer begin with."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Head:
    id: str
    model: str  # the name by which the client asked for the model
    token_ids: bool  # return_token_ids: ids stand beside the text
    created: int = field(default_factory=lambda: int(time.time()))
