"""Strict validation of custom resources against their definitions' schemas."""

import gzip
import json
import pathlib

import jsonschema

SCHEMAS = pathlib.Path(__file__).parent / "schemas"


def strict(schema):
    """The OpenAPI schema as JSON schema that refuses every property it does not know."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: strict(part) for name, part in value.items()}
        elif not key.startswith("x-") and key not in ("nullable", "default", "format"):
            made[key] = strict(value)
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        return {"anyOf": [made, {"type": "null"}]}
    return made


def faults(thing):
    """What is wrong with an object, a line each; None where there is no schema for its kind."""
    path = SCHEMAS / f"{thing.get('kind')}.json.gz"
    if not path.is_file():
        return None
    known = json.loads(gzip.decompress(path.read_bytes()))
    group, _, version = thing["apiVersion"].rpartition("/")
    if group != known["group"] or version not in known["versions"]:
        return [f"apiVersion: {thing['apiVersion']!r}, wanted {known['group']}/"
                f"{'|'.join(known['versions'])}"]
    checker = jsonschema.Draft7Validator(strict(known["versions"][version]))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
            for error in checker.iter_errors(thing)]
