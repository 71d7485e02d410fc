"""For schemathesis, which knows nothing of what is served: bodies that get further than the first check.

Without this nearly all of what it makes asks for a model that is not there, or has no message.
"""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    operation = context.operation
    if not isinstance(body, dict) or operation is None:
        return body
    body = {**body, "model": None}
    if operation.path.endswith("/completions"):
        body["max_tokens"] = 3
        body.pop("max_completion_tokens", None)
    if not body.get("messages") and "/completions" not in operation.path.removeprefix("/v1/chat"):
        body["messages"] = [{"role": "user", "content": "hi"}]
    if operation.path == "/v1/completions" and not body.get("prompt"):
        body["prompt"] = "hi"
    return body
