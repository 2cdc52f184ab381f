from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message

DESCRIPTOR: _descriptor.FileDescriptor

class TaskMessage(_message.Message):
    __slots__ = (
        "completed_at",
        "deadline",
        "error_msg",
        "group_key",
        "id",
        "last_failed_at",
        "payload",
        "queue",
        "retention",
        "retried",
        "retry",
        "timeout",
        "type",
        "unique_key",
    )
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    ERROR_MSG_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILED_AT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    GROUP_KEY_FIELD_NUMBER: _ClassVar[int]
    type: str
    payload: bytes
    id: str
    queue: str
    retry: int
    retried: int
    error_msg: str
    timeout: int
    deadline: int
    unique_key: str
    last_failed_at: int
    retention: int
    completed_at: int
    group_key: str
    def __init__(
        self,
        type: str | None = ...,
        payload: bytes | None = ...,
        id: str | None = ...,
        queue: str | None = ...,
        retry: int | None = ...,
        retried: int | None = ...,
        error_msg: str | None = ...,
        timeout: int | None = ...,
        deadline: int | None = ...,
        unique_key: str | None = ...,
        last_failed_at: int | None = ...,
        retention: int | None = ...,
        completed_at: int | None = ...,
        group_key: str | None = ...,
    ) -> None: ...
