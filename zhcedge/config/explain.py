"""pydantic's errors in plain words: what was found, what is allowed, and what was probably meant.

The words for what is allowed come from the JSON schema of the models, so they follow every change of a bound.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import lru_cache

from pydantic import ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import ErrorDetails

from zhcedge.config.problems import KeyPath, Problem, dotted, found
from zhcedge.config.schema import Config
from zhcedge.config.tree import Tree
from zhcedge.config.values import PROBLEM_TYPE, SLUG_WORDS

_MAX_EXPLAINED = 200
_KEY_MARKER = "[key]"  # pydantic puts it behind the key of a mapping when the key itself is wrong


def explain(error: ValidationError, tree: Tree) -> list[Problem]:
    """The problems behind a failed validation of `tree`, one per key path; those the text explains are left out."""
    problems: dict[KeyPath, Problem] = {}
    for detail in error.errors(include_url=False)[:_MAX_EXPLAINED]:
        path: KeyPath = detail["loc"]
        if detail["type"] != "extra_forbidden":
            path = without_branches(path)
        if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            continue  # pydantic counts good items only; the bad ones have problems of their own
        is_key = path[-1:] == (_KEY_MARKER,) and detail["type"].startswith("string_")
        path = path[:-1] if is_key else path
        if path in problems or any(path[: len(broken)] == broken for broken in tree.broken):
            continue
        if is_key:
            what = "this name can't be used"
            problems[path] = Problem(tree.place_of_key(path), dotted(path), what, SLUG_WORDS)
        elif detail["type"] == "extra_forbidden":
            problems[path] = _unknown_key(path, tree)
        elif detail["type"] == "missing" and isinstance(path[-1], int):
            problems.setdefault(path[:-1], _short_list(path[:-1], tree, detail))
        elif detail["type"] == "missing":
            place = tree.place_of_key(path[:-1])
            problems[path] = Problem(place, dotted(path), "this key is missing", allowed_words(_schema_at(path)))
        else:
            problems[path] = _wrong_value(path, tree, detail)
    return list(problems.values())


def allowed_words(schema: JsonSchemaValue) -> str:
    """What a JSON schema allows, as a phrase: "a whole number from 1 to 65535 or null"."""
    schema = _resolved(schema)
    if "allowed" in schema:
        return str(schema["allowed"])
    if "anyOf" in schema:
        return " or ".join(allowed_words(option) for option in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _number_words(schema)
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])} values, each {allowed_words(schema['prefixItems'][0])}"
    if kind == "array":
        return f"a list of {schema.get('minItems', 0)} to {schema.get('maxItems', 'any number of')} values"
    if kind == "object" and "properties" in schema:
        return f"a section with keys such as {', '.join(list(schema['properties'])[:4])}"
    return {"boolean": "true or false", "string": "text", "null": "null"}.get(str(kind), str(kind))


def _number_words(schema: JsonSchemaValue) -> str:
    words = "a whole number" if schema["type"] == "integer" else "a number"
    if "exclusiveMinimum" in schema:
        return f"{words} above {schema['exclusiveMinimum']}, up to {schema['maximum']}"
    return f"{words} from {schema['minimum']} to {schema['maximum']}"


def without_branches(path: KeyPath) -> KeyPath:
    """A key path without what pydantic adds to it for each branch of a union: "int", "literal['auto']"."""
    schema, kept = _root(), list[str | int]()
    for segment in path:
        child = next((child for key, child in _children(schema) if key in (segment, None)), None)
        if child is None and isinstance(segment, str) and "anyOf" in _resolved(schema):
            continue
        kept.append(segment)
        schema = {} if child is None else child
    return tuple(kept)


def _short_list(path: KeyPath, tree: Tree, detail: ErrorDetails) -> Problem:
    value = detail["input"]
    return Problem(tree.place_of(path), dotted(path), found(value), allowed_words(_schema_at(path)))


def _wrong_value(path: KeyPath, tree: Tree, detail: ErrorDetails) -> Problem:
    value, schema = detail["input"], _schema_at(path)
    place, allowed = tree.place_of(path), allowed_words(schema)
    message = detail["msg"]
    if detail["type"] != PROBLEM_TYPE:
        return Problem(place, dotted(path), found(value), allowed, _value_fix(value, schema))
    if isinstance(value, dict):  # a rule about several keys of one section: no single value is wrong
        return Problem(place, dotted(path), message)
    allowed = str(detail.get("ctx", {}).get("allowed", allowed))
    return Problem(place, dotted(path), found(value), allowed, message or _near(value, allowed.split(", ")))


def _value_fix(value: object, schema: JsonSchemaValue) -> str:
    options = [_resolved(option) for option in _resolved(schema).get("anyOf", [schema])]
    if isinstance(value, str):
        choices = [str(choice) for option in options for choice in option.get("enum", [option.get("const", "")])]
        if any(choices):
            return _near(value, choices)
        is_number = value.removeprefix("-").replace(".", "", 1).isdigit()
        if is_number and any(option.get("type") in ("integer", "number") for option in options):
            return "remove the quotes or the leading zeros"
    elif isinstance(value, (bool, int, float)) and any(_takes_text(option, str(value).lower()) for option in options):
        return "put it in quotes"
    return ""


def _takes_text(option: JsonSchemaValue, text: str) -> bool:
    """Whether an option takes `text`, as far as its schema says."""
    if "enum" in option or "const" in option:
        return text in option.get("enum", [option.get("const")])
    return option.get("type") == "string" and re.search(option.get("pattern", ""), text) is not None


def _unknown_key(path: KeyPath, tree: Tree) -> Problem:
    *parents, key = path
    siblings = [name for name, _ in _children(_schema_at(tuple(parents))) if isinstance(name, str)]
    fix = _near(str(key), siblings)
    if not fix:
        homes = [dotted(home) for home in _key_paths(_root(), ()) if home[-1] == key]
        fix = f"did you mean {homes[0]!r}?" if homes else ""
    return Problem(tree.place_of_key(path), dotted(path), "unknown key", ", ".join(siblings), fix)


def _near(word: object, choices: list[str]) -> str:
    matches = difflib.get_close_matches(str(word)[:64].lower(), choices, n=1)
    return f"did you mean {matches[0]!r}?" if matches else ""


@lru_cache(maxsize=1)
def _root() -> JsonSchemaValue:
    return Config.model_json_schema()


def _resolved(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The schema that a $ref points at, with the keys that stand beside the $ref on top."""
    if "$ref" not in schema:
        return schema
    target: JsonSchemaValue = _root()["$defs"][schema["$ref"].rpartition("/")[2]]
    return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}


def _schema_at(path: KeyPath) -> JsonSchemaValue:
    """The part of the schema that a key path leads to; {} where it leads nowhere."""
    schema = _root()
    for segment in path:
        schema = next((child for key, child in _children(schema) if key in (segment, None)), {})
    return schema


def _children(schema: JsonSchemaValue) -> Iterator[tuple[str | int | None, JsonSchemaValue]]:
    """Sub-schemas by key or position; the key None stands for any name or position."""
    schema = _resolved(schema)
    for option in schema.get("anyOf", ()):
        yield from _children(option)
    yield from schema.get("properties", {}).items()
    for any_key in (*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")):
        if isinstance(any_key, dict):
            yield None, any_key
    yield from enumerate(schema.get("prefixItems", ()))
    if "items" in schema:
        yield None, schema["items"]


def _key_paths(schema: JsonSchemaValue, path: KeyPath) -> Iterator[KeyPath]:
    for key, child in _children(schema):
        here: KeyPath = (*path, "NAME" if key is None else key)
        if key is not None:
            yield here
        yield from _key_paths(child, here)
