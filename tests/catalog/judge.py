"""Run by build/schemas, which has `jsonschema`: judges documents by a schema, and the schema by its own draft's.

Stdin: {"schema", "documents"}; stdout: for each document the first error, or null.
"""

import json
import sys

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]

given = json.load(sys.stdin)
for draft in (validator_for(given["schema"]), Draft202012Validator):
    draft.check_schema(given["schema"])
validator = validator_for(given["schema"])(given["schema"])
errors = [next(iter(validator.iter_errors(d)), None) for d in given["documents"]]
json.dump([None if e is None else f"{e.json_path}: {e.message}" for e in errors], sys.stdout)
