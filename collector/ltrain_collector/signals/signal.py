"""A signal of OTLP, as ingest, import, export, backup and prune use it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from ltrain_collector.access import UNLIMITED, Grant, IngestPolicy, Sender, Shape
from ltrain_collector.errors import Malformed, TooLarge
from ltrain_collector.signals import origin, otlp_json
from ltrain_collector.signals.values import Row
from ltrain_collector.signals.writer import Rows
from ltrain_instrument.quantity import quantity


class Retention(StrEnum):
    """The criterion by which `ltrain store prune` removes a row."""

    ROLLOUT = "rollout"
    """The rollout that the rows of this table make up: its age, run and mode."""
    WITH_ROLLOUT = "with_rollout"
    """The rollout that the row names; a row of a rollout without spans: its own age and run."""
    AGE = "age"
    """Its age: it belongs to no run and no rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of one signal: its columns, its DDL, and how its rows are exported and removed."""

    name: str
    """Database and table, e.g. `otel.otel_logs`."""
    view: str
    """The view over the table that is queried, e.g. `otel.logs`."""
    columns: tuple[str, ...]
    """The exporter's columns, in the order of the encoder; ClickHouse computes ltrain's own."""
    steps: tuple[str, ...]
    """The steps of a migration, files of `ddl/`, that create the table."""
    view_files: tuple[str, ...]
    """The files of `ddl/` that create the view."""
    to_request: Callable[[Sequence[Row]], Message]
    """Returns an OTLP request with the records of rows, in their order."""
    order: str = ""
    """The columns that sort an export; empty for spans, which are exported by rollout."""
    valid_ids: str = "true"
    """SQL condition of rows with valid OpenTelemetry ids; OTLP cannot contain others."""
    time: str = "Timestamp"
    """The column that gives the age of a row."""
    retention: Retention = Retention.AGE
    derived: tuple[str, ...] = ()
    """Tables that ClickHouse fills from this one."""

    @property
    def key(self) -> str:
        """The name in reports and in `Store.migrate`, e.g. `logs` or `metrics_gauge`."""
        return self.name.removeprefix("otel.otel_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A kind of telemetry: traces, logs or metrics."""

    name: str
    path: str
    """URL path of OTLP over HTTP."""
    service: str
    """Service name of OTLP over gRPC."""
    request: type[Message]
    response: type[Message]
    doc: str
    """The meaning of one row of its views, for the documentation."""
    records: str
    """The plural of one record, as in the response's field `rejected_<records>`."""
    tables: tuple[Table, ...]
    encode: Callable[[Any, IngestPolicy], Rows]
    """Returns the rows of a request; the policy is what the client's key allows."""
    matches: Callable[[Any], bool]
    """Returns whether the first record of a message is one of this signal: protobuf parses a
    message of another signal, too."""

    @property
    def noun(self) -> str:
        """The name of the records in reports, e.g. "log records"."""
        return self.records.replace("_", " ")

    def quantity_of(self, records: int) -> str:
        """Return a number of records, such as `1 log record`."""
        return quantity(records, self.noun.removesuffix("s"))

    @property
    def json_key(self) -> str:
        """The top-level key of a request in JSON, e.g. `resourceSpans`."""
        return str(self.request.DESCRIPTOR.fields[0].json_name)

    @property
    def has_rollouts(self) -> bool:
        """Whether records can be selected by run and rollout."""
        return any(table.retention is not Retention.AGE for table in self.tables)

    def encode_body(
        self,
        body: bytes,
        as_json: bool = False,
        grant: Grant | None = None,
        shape: Shape | None = None,
        forwarder: str = "",
    ) -> Rows:
        """Return the rows of a serialized request, with its sender.

        Args:
            grant: what the client's key allows; None: the request has no key.
            shape: the largest record that is stored.
            forwarder: the id of a collector that forwards the stored records: they are returned
                as a request, too, without those that it forwarded before. '' forwards nothing.

        Raises:
            BadRequest: the bytes are not such a request, or it has too many rows.
        """
        message = self._parse(body, as_json)
        can_name_sender = as_json or origin.SENDER_BYTES in body  # JSON can escape the name
        if can_name_sender:
            origin.remove_sender(message)
        returned = bool(forwarder) and origin.remove_returned(message, forwarder)
        origin.set_sender(message, Sender.NONE if grant is None else grant.sender)
        rows = replace(self.encode(message, IngestPolicy(grant, shape)), returned=returned)
        if not (forwarder and rows.blocks):
            return rows
        return replace(rows, request=_forwarded_request(message, forwarder, rows))

    def encode_local(self, message: Message) -> Rows:
        """Return the rows of a request of this process; the sender is `local` if it names none.

        Raises:
            BadRequest: it has too many rows.
        """
        origin.set_sender(message, Sender.LOCAL, replace=False)
        return self.encode(message, UNLIMITED)

    def parse_request(self, body: bytes) -> Message:
        """Parse a serialized request.

        Raises:
            BadRequest: the bytes are not such a request.
        """
        return self._parse(body, False)

    def make_response(self, rows: Rows) -> Any:
        """Return the response for stored rows, with the number of rejected records."""
        response: Any = self.response()
        if rows.rejected:
            setattr(response.partial_success, f"rejected_{self.records}", rows.rejected)
            response.partial_success.error_message = rows.reason
        return response

    def _parse(self, body: bytes, as_json: bool) -> Message:
        if as_json:
            return otlp_json.parse_json(body, self.request)
        check_count(body, self.request.DESCRIPTOR)
        try:
            return self.request.FromString(body)
        except DecodeError as error:
            raise Malformed(
                f"A body of {len(body)} bytes is not an OTLP {self.request.DESCRIPTOR.name} in "
                "protobuf (for JSON, send Content-Type: application/json)."
            ) from error


FIELDS = (
    *("resource_spans", "scope_spans", "spans"),
    *("resource_logs", "scope_logs", "log_records"),
    *("resource_metrics", "scope_metrics", "metrics", "data_points"),
)
"""The fields on the way from a request to its records."""


def _forwarded_request(request: Any, forwarder: str, rows: Rows) -> bytes:
    """Return an encoded request with its forwarder, without rejected records and its sender."""
    origin.remove_resource_sender(request)
    origin.add_forwarder(request, forwarder)
    if rows.rejected:  # rejected records are empty
        _remove_empty(request)
    return bytes(request.SerializeToString())


def _remove_empty(owner: Any) -> bool:
    """Remove the empty records below a message; return whether any record is left."""
    if isinstance(owner, Metric):
        owner = getattr(owner, owner.WhichOneof("data") or "gauge")
    field = next((name for name in FIELDS if name in owner.DESCRIPTOR.fields_by_name), "")
    if not field:
        return bool(owner.ByteSize())
    members = getattr(owner, field)
    left = [each for each in members if _remove_empty(each)]
    if len(left) < len(members):
        del members[:]
        members.extend(left)
    return bool(left)


MAX_MESSAGES = 1 << 21
"""Limit of messages in one request: a span with a million attributes fits."""

UNCOUNTED_BYTES = 2 * MAX_MESSAGES
"""Bodies up to this size cannot contain more messages, so they are not counted."""


def check_count(body: bytes, descriptor: Descriptor) -> None:
    """Check the number of messages in `body` before it is decoded.

    An empty span is two bytes on the wire and two hundred in memory, so 64 MiB could become 6 GiB.
    """
    if len(body) <= UNCOUNTED_BYTES:
        return
    try:
        count = _count_messages(body, _message_fields(descriptor))
    except IndexError:  # it ends within a field: the decoder has a better error
        return
    if count > MAX_MESSAGES:
        raise TooLarge(
            f"The request contains more than {MAX_MESSAGES} messages (spans, attributes, events "
            "and so on). Send less at a time."
        )


def _count_messages(body: bytes, fields: dict[int, Any]) -> int:
    """Count messages, up to one more than allowed; tags of groups are skipped."""
    count = 0
    parts = [(0, len(body), fields)]
    while parts:
        at, end, fields = parts.pop()
        while at < end:
            tag = body[at]
            at += 1
            if tag > 127:
                tag, at = _varint(body, at - 1)
            kind = tag & 7
            if kind == 2:
                size = body[at]
                at += 1
                if size > 127:
                    size, at = _varint(body, at - 1)
                if tag in fields:
                    count += 1
                    if count > MAX_MESSAGES:
                        return count
                    if size:
                        parts.append((at, at + size, _message_fields(fields[tag])))
                at += size
            elif kind == 0:
                while body[at] > 127:
                    at += 1
                at += 1
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
    return count


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while body[at] > 127:
        number |= (body[at] & 127) << shift
        shift += 7
        at += 1
    return number | body[at] << shift, at + 1


@lru_cache(maxsize=256)
def _message_fields(descriptor: Descriptor) -> dict[int, Any]:
    """Return the fields that contain messages, by tag."""
    return {
        field.number << 3 | 2: field.message_type
        for field in descriptor.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE
    }
