"""The limits of the service, and its errors: an HTTP status, a code for programs, a message for people."""

from __future__ import annotations

MAX_BODY_BYTES = 10 * 2**20  # counted as they are received
MAX_IMAGES = 16  # per request
MAX_HEADER_BYTES = 2**16
MAX_CONNECTIONS = 1024
MAX_RECEIVING = 256  # requests whose bodies are being received at the same time
MAX_BUFFERED_BYTES = 256 * 2**20  # all bodies of unanswered requests together
MAX_QUEUED_IMAGES = 64
MAX_QUEUED_EXPLANATIONS = 8
MAX_WAITING_COSTLY = 32  # images that are decoded before they join the queue
MAX_IMAGE_MEMORY = 300 * 2**20  # bytes to decode an image, estimated from its headers
MAX_REQUEST_SECONDS = 4.0  # to decode all images of a request, estimated likewise
MAX_COSTLY_SECONDS = 2.5  # measured, after which no other costly image of a request is begun
RECEIVE_TIMEOUT = 10.0  # seconds for a whole request to arrive
REQUEST_TIMEOUT = 30.0  # seconds for a response

STATUS = {
    "bad_request": 400,
    "unauthorized": 401,
    "foreign_origin": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "receive_timeout": 408,
    "too_large": 413,
    "too_many_images": 413,
    "unsupported_encoding": 415,
    "foreign_host": 421,
    "bad_image": 422,
    "bad_parameter": 422,
    "cannot_explain": 422,
    "too_busy": 429,
    "client_gone": 499,
    "internal": 500,
    "deadline": 503,
    "draining": 503,
    "starting": 503,
}


class ApiError(Exception):
    """An error response. The hint completes a sentence that starts with "Try"."""

    def __init__(self, code: str, message: str, hint: str | None = None, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.retry_after = code, message, hint, retry_after

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def document(self, request_id: str) -> dict[str, object]:
        """The JSON body."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}, "request_id": request_id}


def too_busy() -> ApiError:
    """The error for a full queue."""
    return ApiError("too_busy", "the queue is full.", "again in a moment.", retry_after=1)


def too_large() -> ApiError:
    """The error for a body over the limit."""
    return ApiError("too_large", f"the body exceeds {MAX_BODY_BYTES:,} bytes.", "smaller or fewer images.")


def internal_error() -> ApiError:
    """The error for a bug in the service."""
    return ApiError("internal", "the service failed internally.", "reporting it with the request_id.")
