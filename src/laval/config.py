"""Strict configuration: YAML or a mapping in, nested frozen dataclasses out, and back.

Nothing is guessed: an unknown key, a wrong type or a missing value is a ValueError that names its place.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from laval.files import atomic_write

T = TypeVar("T")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def load_config(cls: type[T], source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> T:
    """Read a frozen dataclass from a YAML file or a mapping; overrides ("train.lr=1e-4") win over both.

    Fields may be int, float, bool, str, Path, Literal, X | None, unions, tuple, list, dict[str, X], dataclasses.
    Errors: FileNotFoundError; ValueError that names source, key path, value, and what was expected.
    """
    if isinstance(source, Mapping):
        mapping, place = dict(source), _Place("config")
    else:
        mapping, place = _read(Path(source)), _Place(str(source))
    for override in overrides:
        mapping = _override(cls, mapping, override)
    return _build(cls, mapping, place)


def to_mapping(config: Any) -> Any:
    """A config as plain mappings, lists, strings and numbers, ready for YAML or JSON."""
    if dataclasses.is_dataclass(config):
        return {field.name: to_mapping(getattr(config, field.name)) for field in _fields(type(config))}
    if isinstance(config, Mapping):
        return {key: to_mapping(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_mapping(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def save_config(config: Any, path: str | Path) -> None:
    """Write a config as YAML that `load_config` reads back as an equal one; all or nothing."""
    with atomic_write(path, "w") as file:
        # escaped on purpose: with allow_unicode PyYAML does not read every character back as it was
        yaml.safe_dump(to_mapping(config), file, sort_keys=False)


@dataclass(frozen=True)
class _Place:
    """Where a value stands: the file (or override) it came from, and its key path."""

    source: str
    path: str = ""

    def __truediv__(self, key: str | int) -> _Place:
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.path else key
        return _Place(self.source, self.path + step)

    def error(self, message: str) -> ValueError:
        return ValueError(": ".join(part for part in (self.source, self.path, message) if part))


@dataclass(frozen=True)
class _Override:
    """The text right of the = sign; the field's type decides how it is read."""

    text: str
    source: str


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"no config file {path}; check the name") from None
    except UnicodeDecodeError as error:
        raise _Place(str(path)).error(f"not UTF-8 at byte {error.start}; expected a YAML text file") from None
    mapping = _parse(text, str(path))
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise _Place(str(path)).error(f"expected keys and values, got {_show(mapping)}")
    return mapping


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{source}: not valid YAML: {error}") from None


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader that refuses a key given twice, where YAML would let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _override(cls: type, mapping: Mapping[str, Any], override: str) -> dict[str, Any]:
    """A copy of the mapping with one key path set; sections on the way are made."""
    path, equals, text = override.partition("=")
    source = f"override {override!r}"
    if not equals or not path.strip():
        raise ValueError(f"{source}: expected KEY.PATH=VALUE, such as train.steps=100")
    return _set(cls, mapping, path.strip().split("."), _Override(text.strip(), source), _Place(source))


def _set(cls: type, mapping: Mapping[str, Any], keys: list[str], value: _Override, place: _Place) -> dict[str, Any]:
    key, *rest = keys
    hints = _hints(cls)
    if key not in hints:
        raise _unknown(key, list(hints), place)
    if not rest:
        return {**mapping, key: value}
    section = _section(hints[key])
    if section is None:
        raise (place / key).error(f"has no keys of its own; set it whole, as {(place / key).path}=VALUE")
    inner = mapping.get(key)
    inner = _parse(inner.text, inner.source) if isinstance(inner, _Override) else inner
    if not isinstance(inner or {}, Mapping):
        raise (place / key).error(f"expected keys and values, got {_show(inner)}")
    return {**mapping, key: _set(section, inner or {}, rest, value, place / key)}


def _build(cls: type[T], mapping: Mapping[str, Any], place: _Place) -> T:
    hints = _hints(cls)
    for key in mapping:
        if key not in hints:
            raise _unknown(key, list(hints), place)
    for field in _fields(cls):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in mapping and not has_default:
            raise (place / field.name).error(f"is missing; expected {_describe(hints[field.name])}")
    values = {key: _convert(hints[key], value, place / key) for key, value in mapping.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise place.error(str(error)) from error


def _convert(hint: Any, value: Any, place: _Place) -> Any:
    """The value as the type hint wants it, or a ValueError."""
    if isinstance(value, _Override):
        return _convert_override(hint, value, _Place(value.source, place.path))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _convert_section(hint, value, place)
    if origin in (Union, types.UnionType):
        return _convert_union(hint, args, value, place)
    if origin is Literal:
        # 1 == True in Python: the type decides too
        if not any(value == choice and type(value) is type(choice) for choice in args):
            raise _wrong(hint, value, place)
        return value
    if (origin or hint) in (tuple, list):
        return _convert_items(hint, args, value, place)
    if (origin or hint) is dict:
        return _convert_dict(hint, args, value, place)
    return _convert_plain(hint, value, place)


def _convert_override(hint: Any, override: _Override, place: _Place) -> Any:
    kinds = set(_members(hint))
    as_text = hint is Path or str in kinds
    if as_text and kinds <= {str, Path}:
        return _convert(hint, override.text, place)  # never read as YAML: a name such as 007 or no stays a name
    try:
        return _convert(hint, _parse(override.text, place.source), place)
    except ValueError:
        if not as_text:
            raise
        return _convert(hint, override.text, place)


def _convert_section(cls: type, value: Any, place: _Place) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping) and value is not None:
        raise _wrong(cls, value, place)
    return _build(cls, value or {}, place)  # a heading with nothing below it: all defaults


def _convert_union(hint: Any, members: tuple, value: Any, place: _Place) -> Any:
    if value is None and type(None) in members:
        return None
    others = [member for member in members if member is not type(None)]
    if isinstance(value, Mapping):
        others = [member for member in others if dataclasses.is_dataclass(member)] or others
    if len(others) == 1:  # its own error says more than "fits none"
        return _convert(others[0], value, place)
    for member in sorted(others, key=lambda member: member is not type(value)):
        try:
            return _convert(member, value, place)
        except ValueError:
            continue
    raise _wrong(hint, value, place)


def _convert_items(hint: Any, args: tuple, value: Any, place: _Place) -> list | tuple:
    if not isinstance(value, (list, tuple)):
        raise _wrong(hint, value, place)
    kind = typing.get_origin(hint) or hint
    if kind is list or not args or args[-1] is Ellipsis:
        args = (args[0] if args else Any,) * len(value)
    elif len(args) != len(value):
        raise _wrong(hint, value, place)
    return kind(_convert(arg, item, place / i) for i, (arg, item) in enumerate(zip(args, value, strict=True)))


def _convert_dict(hint: Any, args: tuple, value: Any, place: _Place) -> dict:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(hint, value, place)
    return {key: _convert(args[1] if args else Any, item, place / key) for key, item in value.items()}


def _convert_plain(hint: Any, value: Any, place: _Place) -> Any:
    if hint is Any:
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and is_number:
        return float(value)
    if hint is float and isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)  # YAML 1.1 reads 1e-4 as text
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    raise _wrong(hint, value, place)


def _fields(cls: type) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in _fields(cls)}


def _members(hint: Any) -> tuple:
    """The types a value may have: a union's, and of a Literal the types of its choices."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return tuple(type(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return tuple(kind for arg in args for kind in _members(arg))
    return (hint,)


def _section(hint: Any) -> type | None:
    """The dataclass a key path may walk into, if there is one."""
    return next((member for member in _members(hint) if dataclasses.is_dataclass(member)), None)


def _unknown(key: Any, known: list[str], place: _Place) -> ValueError:
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (place / str(key)).error(f"unknown key; {hint}Known here: {', '.join(known) or 'none'}")


def _wrong(hint: Any, value: Any, place: _Place) -> ValueError:
    quote = " (YAML reads on, off, yes and no as booleans: put quotes around it)"
    wants_text = isinstance(value, bool) and str in _members(hint)
    return place.error(f"expected {_describe(hint)}, got {_show(value)}{quote if wants_text else ''}")


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if arg is type(None) else _describe(arg) for arg in args)
    if origin in (tuple, list) and args:
        items = args[0] if origin is list or args[-1] is Ellipsis else None
        return (
            f"a list of {_describe(items)}" if items else f"a list of {len(args)}: {', '.join(map(_describe, args))}"
        )
    if dataclasses.is_dataclass(hint):
        return f"keys and values ({', '.join(_hints(hint))})"
    return {Path: "a path", tuple: "a list", list: "a list"}.get(origin or hint, getattr(hint, "__name__", str(hint)))


def _show(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
