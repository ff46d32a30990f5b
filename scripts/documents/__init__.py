"""Every document that `-o json` prints, declared: what its JSON Schema in docs/schemas is made of.

Answers for: names, types and what they mean. A test holds real answers against it, unknown fields and all. The shipped
schemas allow further fields: changes are additive.
"""

from scripts.documents import others, plan, status

#: Schema id -> the struct of the whole document.
DOCUMENTS = {s.SCHEMA: s for s in (*status.DOCUMENTS, *plan.DOCUMENTS, *others.DOCUMENTS)}
