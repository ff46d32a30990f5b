"""What goes over a wire or into a file: `codec` for messages, `plan` and `status` for the documents."""

from llmgw.wire.codec import (
    WireError,
    decode,
    decode_report,
    decode_reports,
    encode,
    report_document,
    report_of,
    shard_document,
    shard_of,
    shards_digest,
)

__all__ = [
    "WireError",
    "decode",
    "decode_report",
    "decode_reports",
    "encode",
    "report_document",
    "report_of",
    "shard_document",
    "shard_of",
    "shards_digest",
]
