"""What a stranger may ask of the service, and how it says no: a status, a code for programs, words for people."""

from __future__ import annotations

from vitrail.data.decode import MAX_PIXELS, MAX_SIDE

BODY = 10 * 2**20  # bytes, counted as they are received
IMAGES = 16  # of one request
RECEIVE_SECONDS = 10.0  # for a whole request to arrive
REQUEST_SECONDS = 30.0  # for an answer
QUEUE = 64  # pictures that wait
HEADERS = 2**16  # bytes before the body
RECEIVING = 256  # requests whose bodies are on their way at the same time
HELD = 256 * 2**20  # bytes of all bodies that have come and are not answered
LINES = 1024  # connections
EXPLAINING = 8  # pictures that wait to be explained
PIXELS, SIDE = MAX_PIXELS, MAX_SIDE

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


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """A request that gets no answer but this one."""

    def __init__(self, code: str, message: str, hint: str | None = None, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.retry_after = code, message, hint, retry_after

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def document(self, request_id: str) -> dict[str, object]:
        """What the client reads."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}, "request_id": request_id}


def too_busy() -> Refusal:
    """There is no more room in the queue."""
    return Refusal("too_busy", "all places in the queue are taken.", "the same request a little later.", retry_after=1)


def too_large() -> Refusal:
    """A body past the limit."""
    return Refusal("too_large", f"the body is larger than {BODY:,} bytes.", "smaller or fewer pictures.")
