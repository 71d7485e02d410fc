"""A process with an engine on a cache directory, for tests that kill it or run two of them.

    python -m tests.engine.disk_worker FOLDER SEED REQUESTS MAX_BYTES [MAX_FILE_BYTES]

Sends requests with a few shared prefixes through a pool that is far too small, checks every answer, and prints the
number of blocks written and restored after each. A wrong answer ends it with an error.
"""

import random
import resource
import sys
import time
from pathlib import Path

from tests.engine.ledger import expected_answer
from tests.engine.test_core import Answers, make_core, make_request
from tests.limits import HANG_S
from tokenline.engine import disk_tier
from tokenline.engine.disk_tier import DiskSettings


def main(folder: str, seed: str, requests: str, max_bytes: str, max_file_bytes: str | None = None) -> None:
    disk_tier.SAVE_S = HANG_S  # on a disk that is slow it would end in the middle of a file
    draw = random.Random(int(seed))
    core = make_core(num_blocks=24, block_size=4, disk=DiskSettings(Path(folder), int(max_bytes), "ledger"))
    assert core.tier is not None
    if max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_file_bytes), int(max_file_bytes)))
    for number in range(int(requests)):
        prompt = [draw.randrange(6)] * draw.randrange(1, 70) + [draw.randrange(90) for _ in range(draw.randrange(1, 9))]
        request = make_request(f"r{number}", prompt, 3, retention_s=draw.choice([None, 86400, 0]))
        core.add(request)
        answers = Answers().run(core)
        assert answers.ids[f"r{number}", 0] == expected_answer(prompt, 3), f"wrong answer to {prompt}"
        stats = core.tier.stats()
        print(stats.written, stats.restored, flush=True)
        while number % 10 == 9 and core.tier.is_writing:  # on a slow disk nothing would be there to be restored
            time.sleep(0.002)
    core.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
