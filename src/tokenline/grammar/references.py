"""What `$ref` leads to: the schemas inside one schema, by their addresses (RFC 3986 and JSON pointers), never outside.

Every schema with an `$id` begins a resource of its own, against which the references in it are resolved.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from tokenline.fields import Path, pointer_parts
from tokenline.grammar.errors import unsupported
from tokenline.grammar.vocabulary import LISTS, NAMED, ONE


class References:
    """The schemas in one root, by address."""

    def __init__(self, root: Any, path: Path) -> None:
        """`path`: the root's own place, with which all places begin."""
        self._places: dict[str, tuple[Any, Path, str]] = {"": (root, path, "")}
        self._bases: dict[int, str] = {}
        for schema, place, base in _walk(root, path, ""):
            self._bases[id(schema)] = base
            if base not in self._places:
                self._places[base] = (schema, place, base)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := schema.get(keyword), str):
                    self._places.setdefault(f"{base}#{name}", (schema, place, base))

    def base(self, schema: Any) -> str:
        """The address against which references in this schema are resolved."""
        return self._bases.get(id(schema), "")

    def find(self, reference: str, base: str, at: Path) -> tuple[Any, Path]:
        """The schema that `reference` names, and its place. Raises ConstraintError. `at`: where the reference is."""
        address, fragment = urldefrag(urljoin(base, reference) if reference else base)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            address, fragment = f"{address}#{fragment}", ""
        if address not in self._places:
            raise unsupported(f"refers to {reference!r}: only references into the schema itself can be followed.", *at)
        value, path, _ = self._places[address]
        for name in pointer_parts(fragment):
            if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value, path = value[int(name)], (*path, int(name))
            elif isinstance(value, dict) and name in value:
                value, path = value[name], (*path, name)
            else:
                raise unsupported(f"refers to {reference!r}, which the schema does not have.", *at)
        return value, path


def _walk(root: Any, path: Path, base: str) -> Iterator[tuple[dict[str, Any], Path, str]]:
    """Every schema in this one, outer ones first, with its place and the address that its references begin from."""
    waiting = [(root, path, base)]
    while waiting:
        schema, path, base = waiting.pop()
        if not isinstance(schema, dict):
            continue
        if isinstance(address := schema.get("$id"), str) and not address.startswith("#"):
            base = urldefrag(urljoin(base, address))[0]
        yield schema, path, base
        inner: list[tuple[Any, Path]] = [(schema.get(keyword), (keyword,)) for keyword in ONE]
        for keyword in LISTS:
            if isinstance(schema.get(keyword), list):
                inner += [(part, (keyword, index)) for index, part in enumerate(schema[keyword])]
        for keyword in NAMED:
            if isinstance(schema.get(keyword), dict):
                inner += [(part, (keyword, name)) for name, part in schema[keyword].items()]
        waiting += [(part, (*path, *step), base) for part, step in reversed(inner)]
