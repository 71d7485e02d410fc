"""Wire in: `tool_choice`, which tools may or must be called. Faults are FieldErrors."""

from typing import Any

from tokenline.fields import FieldError, shown
from tokenline.service.request import AllowedTools, NamedTool, ToolChoice


def read_tool_choice(wanted: Any) -> ToolChoice | None:
    if wanted in (None, "none", "auto", "required"):
        return wanted
    if wanted == "any":  # Mistral's word
        return "required"
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "allowed_tools":
        return _allowed_tools(wanted.get("allowed_tools"))
    if (name := _named_tool(wanted)) is not None:
        return NamedTool(name)
    raise FieldError(
        ("tool_choice",),
        'must be "none", "auto", "required", {"type": "function", "function": {"name": …}} or '
        f'{{"type": "allowed_tools", …}}; got {shown(wanted)}.',
    )


def _allowed_tools(allowed: Any) -> AllowedTools:
    place = ("tool_choice", "allowed_tools")
    if not isinstance(allowed, dict):
        raise FieldError(place, f"must be an object; got {shown(allowed)}.", code="invalid_type")
    mode, tools = allowed.get("mode"), allowed.get("tools")
    if mode not in ("auto", "required"):
        raise FieldError((*place, "mode"), f'must be "auto" or "required"; got {shown(mode)}.')
    if not isinstance(tools, list) or not tools:
        raise FieldError((*place, "tools"), f"must be a non-empty array of tools; got {shown(tools)}.")
    names: list[str] = []
    for index, tool in enumerate(tools):
        name = _named_tool(tool)
        if name is None:
            accepted = '{"type": "function", "function": {"name": …}}'
            raise FieldError((*place, "tools", index), f"must be {accepted}; got {shown(tool)}.")
        names.append(name)
    return AllowedTools(tuple(names), required=mode == "required")


def _named_tool(value: Any) -> str | None:
    """The name in `{"type": "function", "function": {"name": ...}}`, or the same of a custom tool; else None."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("function", "custom"):
        return None
    named = value.get(kind)
    name = named.get("name") if isinstance(named, dict) else None
    return name if isinstance(name, str) else None
