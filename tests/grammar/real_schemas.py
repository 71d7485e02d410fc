"""Schemas as people send them: of pydantic, zod, OpenAI's strict mode and tools of MCP servers, each with a value.

pydantic's are made here; the others are written in the style of their makers. What else fulfils or breaks a schema is
made of its value by small changes (`changed`), and told by the package `jsonschema`.
"""

import copy
import datetime
import decimal
import enum
import random
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter


class Real(NamedTuple):
    name: str
    schema: Any
    value: Any


class Colour(enum.Enum):
    RED = "red"
    BLUE = "蓝"


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    city: str = Field(min_length=1, max_length=40, description="the town", examples=["Oslo"])
    zip: str = Field(pattern=r"^\d{5}(-\d{4})?$")
    country: Literal["NO", "SE", "DK"] = "NO"


class Person(BaseModel):
    name: str = Field(title="Full name")
    age: int = Field(ge=0, le=150)
    height: float | None = None
    tags: list[str] = Field(default_factory=list, max_length=5)
    address: Address
    previous: list[Address] = []
    colour: Colour = Colour.RED
    scores: dict[str, float] = {}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: uuid.UUID
    at: datetime.datetime
    day: datetime.date | None
    pair: tuple[int, str]
    price: decimal.Decimal | None = None
    nested: dict[str, list[int]]


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(gt=0, lt=10)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str
    friend: "Pet | None" = None


class Pet(RootModel[Annotated[Cat | Dog, Field(discriminator="kind")]]):
    pass


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: list[Step] = Field(min_length=1)
    final_answer: str


class Query(BaseModel):
    op: Literal["=", ">", "<"]
    column: str
    value: str | int | float | bool | None
    and_: "list[Query] | None" = Field(default=None, alias="and")


Dog.model_rebuild()
ADDRESS = {"street": "Karl Johans gate 1", "city": "Oslo", "zip": "01234", "country": "NO"}
PYDANTIC = [
    Real("address", Address.model_json_schema(), ADDRESS),
    Real(
        "person",
        Person.model_json_schema(),
        {
            "name": "Kari 中",
            "age": 33,
            "height": 1.71,
            "tags": ["a", "b"],
            "address": ADDRESS,
            "previous": [ADDRESS],
            "colour": "蓝",
            "scores": {"x": 1.5},
        },
    ),
    Real(
        "forbid",
        Strict.model_json_schema(),
        {
            "id": "123e4567-e89b-12d3-a456-426614174000",
            "at": "2026-11-30T12:00:00Z",
            "day": None,
            "pair": [1, "x"],
            "price": 12.5,
            "nested": {"a": [1, 2]},
        },
    ),
    Real("tree", Node.model_json_schema(), {"value": 1, "children": [{"value": 2, "children": []}]}),
    Real("union", Pet.model_json_schema(), {"kind": "dog", "name": "Rex", "friend": {"kind": "cat", "lives": 9}}),
    Real(
        "reasoning",
        Reasoning.model_json_schema(),
        {"steps": [{"explanation": "add", "output": "4"}], "final_answer": "4"},
    ),
    Real(
        "query",
        Query.model_json_schema(),
        {"op": "=", "column": "id", "value": 3, "and": [{"op": "<", "column": "a", "value": "x"}]},
    ),
    Real("list of models", TypeAdapter(list[Address]).json_schema(), [ADDRESS, ADDRESS]),
    Real("dict by literal", TypeAdapter(dict[Literal["a", "b"], int]).json_schema(), {"a": 1, "b": 2}),
    Real("dict by pattern", TypeAdapter(dict[Annotated[str, Field(pattern="^k_")], int]).json_schema(), {"k_1": 1}),
    Real("optional", TypeAdapter(int | str | None).json_schema(), 5),
    Real("tuple", TypeAdapter(tuple[int, float, Literal["x"]]).json_schema(), [1, 2.5, "x"]),
    Real(
        "bounded",
        TypeAdapter(
            Annotated[list[Annotated[int, Field(multiple_of=5)]], Field(min_length=1, max_length=3)]
        ).json_schema(),
        [5, 10],
    ),
    Real("time delta", TypeAdapter(dict[str, datetime.timedelta | datetime.time]).json_schema(), {"a": "PT5M"}),
]


def zod(**properties: Any) -> dict[str, Any]:
    """What z.toJSONSchema makes of an object."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": [name for name, part in properties.items() if "default" not in part],
        "additionalProperties": False,
    }


EMAIL = "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"
DATE = (
    "^(?:(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][048]00|[13579][26]00)-02-29|\\d{4}-(?:(?:0[13578]|"
    "1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|(?:02)-(?:0[1-9]|1\\d|2[0-8])))$"
)
UUID = (
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|"
    "0{8}-0000-0000-0000-0{12})$"
)
BASE64 = "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"
SAFE = {"minimum": -9007199254740991, "maximum": 9007199254740991}
ZOD = [
    Real(
        "zod user",
        zod(
            name={"type": "string", "minLength": 1},
            email={"type": "string", "format": "email", "pattern": EMAIL},
            age={"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        ),
        {"name": "A", "email": "a.b@example.com", "age": 3},
    ),
    Real(
        "zod strings",
        zod(
            id={"type": "string", "format": "uuid", "pattern": UUID},
            day={"type": "string", "format": "date", "pattern": DATE},
            data={"type": "string", "format": "base64", "contentEncoding": "base64", "pattern": BASE64},
            phone={"type": "string", "format": "e164", "pattern": "^\\+[1-9]\\d{6,14}$"},
        ),
        {"id": "123e4567-e89b-12d3-a456-426614174000", "day": "2024-02-29", "data": "YWJj", "phone": "+4712345678"},
    ),
    Real(
        "zod nullable",
        zod(
            x={"anyOf": [{"type": "string"}, {"type": "null"}]},
            y={"type": "boolean", "default": False},
            n={"type": "integer", **SAFE},
        ),
        {"x": None, "y": True, "n": -5},
    ),
    Real(
        "zod record",
        zod(scores={"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}}),
        {"scores": {"a": 1.5}},
    ),
    Real(
        "zod enum record",
        zod(
            m={
                "type": "object",
                "propertyNames": {"type": "string", "enum": ["up", "down"]},
                "additionalProperties": {"type": "number"},
                "required": ["up", "down"],
            }
        ),
        {"m": {"up": 1, "down": 2}},
    ),
    Real(
        "zod union",
        {
            "anyOf": [
                zod(t={"type": "string", "const": "circle"}, r={"type": "number", "exclusiveMinimum": 0}),
                zod(t={"type": "string", "const": "box"}, w={"type": "number"}, h={"type": "number"}),
            ]
        },
        {"t": "box", "w": 1, "h": 2.5},
    ),
    Real(
        "zod oneOf",
        {
            "oneOf": [
                zod(t={"type": "string", "const": "a"}, v={"type": "number"}),
                zod(t={"type": "string", "const": "b"}),
            ]
        },
        {"t": "a", "v": 2},
    ),
    Real(
        "zod tuple",
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": {"type": "boolean"}},
        ["a", 1, True],
    ),
    Real(
        "zod intersection",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "number"}}, "required": ["b"]},
            ]
        },
        {"a": "x", "b": 1},
    ),
    Real(
        "zod lazy",
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "subcategories": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["name", "subcategories"],
            "additionalProperties": False,
        },
        {"name": "a", "subcategories": [{"name": "b", "subcategories": []}]},
    ),
    Real(
        "zod draft 7",
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "a": {"type": "array", "items": [{"type": "string"}, {"type": "number"}], "minItems": 2, "maxItems": 2},
                "b": {"type": "object", "additionalProperties": {}},
                "c": {"not": {}},
            },
            "required": ["a"],
            "additionalProperties": False,
        },
        {"a": ["x", 1], "b": {"z": 1}},
    ),
]


def strict(**properties: Any) -> dict[str, Any]:
    """What OpenAI's strict mode takes."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRICT = [
    Real(
        "weather",
        strict(
            location={"type": "string", "description": "City and country"},
            units={"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]},
        ),
        {"location": "Oslo, Norway", "units": None},
    ),
    Real(
        "email",
        strict(to={"type": "array", "items": {"type": "string"}}, subject={"type": "string"}, body={"type": "string"}),
        {"to": ["a@b.c"], "subject": "Hi", "body": "Dear\nall,\n\t…"},
    ),
    Real(
        "search",
        strict(
            query={"type": "string"},
            options=strict(
                num_results={"type": "number"},
                domain_filter={"type": ["string", "null"]},
                sort_by={"type": ["string", "null"], "enum": ["relevance", "date", "popularity", "alphabetical", None]},
            ),
        ),
        {"query": "x", "options": {"num_results": 5, "domain_filter": None, "sort_by": "date"}},
    ),
    Real(
        "ui",
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["div", "button", "form"]},
                "label": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#"}},
                "attributes": {"type": "array", "items": strict(name={"type": "string"}, value={"type": "string"})},
            },
            "required": ["type", "label", "children", "attributes"],
            "additionalProperties": False,
        },
        {
            "type": "form",
            "label": "L",
            "children": [{"type": "button", "label": "", "children": [], "attributes": []}],
            "attributes": [{"name": "a", "value": "b"}],
        },
    ),
    Real(
        "linked list",
        {
            "type": "object",
            "properties": {"linked_list": {"$ref": "#/$defs/node"}},
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "number"},
                        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    },
                    "additionalProperties": False,
                    "required": ["next", "value"],
                }
            },
            "additionalProperties": False,
            "required": ["linked_list"],
        },
        {"linked_list": {"value": 1, "next": {"value": 2, "next": None}}},
    ),
    Real(
        "item or address",
        strict(
            item={
                "anyOf": [
                    strict(name={"type": "string"}, age={"type": "number"}),
                    strict(number={"type": "string"}, street={"type": "string"}, city={"type": "string"}),
                ]
            }
        ),
        {"item": {"number": "1", "street": "s", "city": "c"}},
    ),
    Real(
        "user constraints",
        strict(
            username={"type": "string", "pattern": "^@[a-zA-Z0-9_]+$"},
            email={"type": "string", "format": "email"},
            temperature={"type": "number", "minimum": -130, "maximum": 130},
            list={"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
        ),
        {"username": "@me_1", "email": "a@b.cd", "temperature": 36.6, "list": [1, 2, 3]},
    ),
]


def mcp(required: list[str], **properties: Any) -> dict[str, Any]:
    """What tools of MCP servers declare: objects that do not say whether there may be other members."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        "required": required,
    }


TEXT = {"type": "string"}
MCP = [
    Real(
        "read_file",
        mcp(["path"], path=TEXT, head={"type": "number", "description": "lines"}, tail={"type": "number"}),
        {"path": "/a", "head": 5},
    ),
    Real(
        "edit_file",
        mcp(
            ["path", "edits"],
            path=TEXT,
            edits={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"oldText": TEXT, "newText": TEXT},
                    "required": ["oldText", "newText"],
                    "additionalProperties": False,
                },
            },
            dryRun={"type": "boolean", "default": False},
        ),
        {"path": "a", "edits": [{"oldText": "x\n", "newText": '"y"'}], "dryRun": True},
    ),
    Real("list_allowed", {"type": "object", "properties": {}, "required": []}, {}),
    Real("no properties", {"type": "object"}, {"x": [1]}),
    Real(
        "create_issue",
        mcp(
            ["owner", "repo", "title"],
            owner=TEXT,
            repo=TEXT,
            title=TEXT,
            labels={"type": "array", "items": TEXT},
            milestone={"type": "number"},
            assignees={"type": "array", "items": TEXT},
        ),
        {"owner": "o", "repo": "r", "title": "t", "labels": ["bug"], "milestone": 3},
    ),
    Real(
        "search_code",
        mcp(
            ["q"],
            q=TEXT,
            order={"type": "string", "enum": ["asc", "desc"]},
            page={"type": "number", "minimum": 1},
            per_page={"type": "number", "minimum": 1, "maximum": 100},
        ),
        {"q": "x", "order": "asc", "page": 2, "per_page": 50},
    ),
    Real(
        "push_files",
        mcp(
            ["files"],
            files={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"path": TEXT, "content": TEXT},
                    "required": ["path", "content"],
                },
            },
        ),
        {"files": [{"path": "a", "content": "中"}]},
    ),
    Real(
        "fetch",
        mcp(
            ["url"],
            url={"type": "string", "format": "uri", "minLength": 1},
            max_length={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000000, "default": 5000},
            raw={"type": "boolean"},
        ),
        {"url": "https://a.b/c?d=1", "max_length": 10},
    ),
    Real(
        "entities",
        mcp(
            ["entities"],
            entities={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"name": TEXT, "entityType": TEXT, "observations": {"type": "array", "items": TEXT}},
                    "required": ["name", "entityType", "observations"],
                },
            },
        ),
        {"entities": [{"name": "n", "entityType": "t", "observations": ["o"]}]},
    ),
    Real(
        "thinking",
        mcp(
            ["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"],
            thought=TEXT,
            nextThoughtNeeded={"type": "boolean"},
            thoughtNumber={"type": "integer", "minimum": 1},
            totalThoughts={"type": "integer", "minimum": 1},
        ),
        {"thought": "hm", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
    ),
    Real(
        "query",
        mcp(["sql"], sql=TEXT, params={"type": "array", "items": {"type": ["string", "number", "boolean", "null"]}}),
        {"sql": "select 1", "params": [1, "x", None]},
    ),
    Real(
        "navigate",
        mcp(
            ["url"],
            url=TEXT,
            launchOptions={"type": "object", "description": "any"},
            allowDangerous={"type": "boolean"},
        ),
        {"url": "http://x", "launchOptions": {"a": {"b": 1}}},
    ),
    Real(
        "time",
        mcp(
            ["time"],
            time={"type": "string", "pattern": "^([01]\\d|2[0-3]):[0-5]\\d$"},
            zone={"type": "string", "enum": ["Europe/Oslo", "Asia/上海"]},
        ),
        {"time": "23:59", "zone": "Asia/上海"},
    ),
    Real(
        "maps",
        mcp(
            ["origins", "mode"],
            origins={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 25},
            mode={"type": "string", "enum": ["driving", "walking"]},
        ),
        {"origins": ["a"], "mode": "walking"},
    ),
    Real(
        "notion filter",
        mcp(
            ["filter"],
            filter={
                "type": "object",
                "anyOf": [
                    {"properties": {"and": {"type": "array", "items": {"type": "object"}}}, "required": ["and"]},
                    {"properties": {"property": TEXT}, "required": ["property"]},
                ],
            },
        ),
        {"filter": {"and": [{"x": 1}]}},
    ),
    Real(
        "unique labels",
        mcp(["labels"], labels={"type": "array", "items": TEXT, "uniqueItems": True}),
        {"labels": ["a"]},
    ),
    Real(
        "either",
        {
            "type": "object",
            "properties": {"id": TEXT, "name": TEXT},
            "oneOf": [{"required": ["id"]}, {"required": ["name"]}],
        },
        {"id": "x"},
    ),
    Real(
        "conditional",
        {
            "type": "object",
            "properties": {"a": {"type": "boolean"}, "b": TEXT},
            "if": {"properties": {"a": {"const": True}}},
            "then": {"required": ["b"]},
        },
        {"a": False},
    ),
]
REAL = [*PYDANTIC, *ZOD, *STRICT, *MCP]


def changed(value: Any, count: int, seed: int = 0) -> Iterator[Any]:
    """Values that differ a little from this one, among them always some that leave out, add or replace a member."""
    drawn = random.Random(seed)
    for _ in range(count):
        other = copy.deepcopy([value])
        places = list(_places(other))
        holder, key = drawn.choice(places)
        inside = holder[key]
        kind = drawn.randrange(4)
        if kind == 0 and isinstance(inside, dict) and inside:
            del inside[drawn.choice(list(inside))]
        elif kind == 1 and isinstance(inside, dict):
            inside[drawn.choice(["extra", "中", "x_1"])] = drawn.choice([1, "s", None, []])
        elif kind == 2 and isinstance(inside, list):
            inside.append(copy.deepcopy(drawn.choice(inside)) if inside and drawn.random() < 0.6 else 7)
        elif isinstance(inside, str):
            holder[key] = drawn.choice([inside[:-1], inside + "x", inside * 3, "", "中", 5, None])
        elif isinstance(inside, bool) or inside is None:
            holder[key] = drawn.choice([True, False, None, "x", 0])
        elif isinstance(inside, int | float):
            holder[key] = drawn.choice([inside + 1, -inside, inside * 1000, inside + 0.5, 0, "1", None])
        else:
            holder[key] = drawn.choice([{}, [], 1, "x"])
        yield other[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
