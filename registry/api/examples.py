"""Examples for the OpenAPI document, put together from one table of what things are called.

A name means the same wherever it stands, so each gets its example once. What a route says itself
(`examples` on a model or a field) goes first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_DIGEST = f"sha256:{_SHA256}"
_MOMENT = "2030-01-31T12:00:00Z"
_ID = "01k0c4s9rt5m2v8x6q3h7n1dwe"
NAMES: Mapping[str, Sequence[Any]] = {
    "adapter": ["checkpoints/hf/adapter_model.safetensors"],
    "alias": ["prod"],
    "aliases": [["prod"]],
    "architecture": ["LlamaForCausalLM"],
    "base_digest": [_DIGEST],
    "base_model": ["smollm2-135m-instruct"],
    "context_length": [8192],
    "description": ["ten steps on the facts"],
    "detail": ["no group named 'fact'"],
    "digest": [_DIGEST],
    "error": [None],
    "files": [["tokenizer.json"]],
    "from": ["facts@1"],
    "group": ["facts"],
    "id": [_ID],
    "kind": ["adapter"],
    "lora": [{"rank": 16, "alpha": 32.0, "targets": ["q_proj"], "seed": 1}],
    "max_tokens": [16],
    "message": ["the model 'fact' does not exist"],
    "metadata": [{"dataset": "facts-2"}],
    "metrics": [{"loss": 0.42}],
    "model": ["workshop"],
    "name": ["facts"],
    "next_cursor": [None],
    "param": ["model"],
    "parent": ["facts@1"],
    "path": ["checkpoints/hf/adapter_config.json"],
    "previous": ["facts@1"],
    "prompt": ["The yard opens at"],
    "ref": ["facts@2"],
    "root": ["facts@2"],
    "session": ["first"],
    "sha256": [_SHA256],
    "size": [1048576],
    "source": ["facts@1"],
    "start_time": [1893456000],
    "status": [404, "active"],
    "tags": [["golden"]],
    "targets": [["q_proj", "v_proj"]],
    "target": ["facts@2"],
    "title": ["GroupNotFound"],
    "to": ["facts@2"],
    "token": ["tok_" + _ID],
    "types": [["alias.moved", "version.registered"]],
    "url": ["https://hooks.example.com/modelyard"],
    "usage": [{"train": 4096}],
    "version": [2, "facts@2"],
    "vocab_size": [49152],
    "why": ["evaluated"],
}
PARAMETERS: Mapping[str, str] = {
    "against": "1",
    "alias": "prod",
    "delivery": f"dlv_{_ID}",
    "file": "tokenizer.json",
    "group": "facts",
    "idempotency-key": "5f0c6b1e-8a5d",
    "if-match": '"1"',
    "merge_id": f"mrg_{_ID}",
    "model": "workshop",
    "number": "1",
    "operation_id": f"op_{_ID}",
    "path": "checkpoints/hf/adapter_config.json",
    "upload": f"pkg_{_ID}",
    "version": "1",
    "webhook": f"whk_{_ID}",
}
OWNERS: Mapping[str, str] = {
    "/v1/deployments/{name}": "workshop",
    "/v1/models/{name}": "smollm2-135m-instruct",
    "/v1/sessions/{name}": "first",
}
"""What `name` is, by how the path begins."""


def add_examples(document: Document) -> None:
    """Give every schema of an object, and every parameter that must be there, an example."""
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        if "properties" in schema and "examples" not in schema:
            schema["examples"] = [_of(schema, schemas)]
    for path, methods in document["paths"].items():
        owner = next((begin for begin in OWNERS if path.startswith(begin)), None)
        names = PARAMETERS if owner is None else {**PARAMETERS, "name": OWNERS[owner]}
        for said in methods.values():
            for parameter in said.get("parameters", ()):
                _exemplify(parameter, names)


def _exemplify(parameter: Document, names: Mapping[str, str]) -> None:
    """A filter is left open: with an example of each, a list would be empty."""
    value = names.get(parameter["name"].lower())
    if value is not None and (parameter["in"] != "query" or parameter.get("required")):
        parameter.setdefault("example", _number_if_asked(value, parameter["schema"]))


def _number_if_asked(text: str, schema: Document) -> str | int:
    return int(text) if schema.get("type") == "integer" else text


def _of(schema: Document, schemas: Mapping[str, Document], name: str = "") -> Any:
    """The first that is there: its own example, its name's, its default, and what its type can."""
    if "$ref" in schema:
        return _of(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    for own in ("examples", "enum"):
        if own in schema:
            return schema[own][0]
    if "const" in schema:
        return schema["const"]
    choices = schema.get("anyOf", [schema])
    for value in NAMES.get(name, ()):
        if any(_fits(value, choice) for choice in choices):
            return value
    if "default" in schema:
        return schema["default"]
    if "anyOf" in schema:
        return _of(choices[0], schemas, name)
    return _of_type(schema, schemas)


def _of_type(schema: Document, schemas: Mapping[str, Document]) -> Any:
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {name: _of(field, schemas, name) for name, field in fields.items()}
        case "array":
            return [_of(schema["items"], schemas)] if schema.get("items") else []
        case "string":
            return _MOMENT if schema.get("format") == "date-time" else "text"
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case _:
            return None


def _fits(value: Any, schema: Document) -> bool:
    if value is None:
        return schema.get("type") == "null"
    plain = not {"format", "pattern", "$ref"} & schema.keys()
    if schema.get("type") == "array" and "$ref" in schema.get("items", {}):
        return False
    is_flag = isinstance(value, bool)
    kind = schema.get("type", "")
    return plain and isinstance(value, _TYPES.get(kind, ())) and is_flag == (kind == "boolean")
