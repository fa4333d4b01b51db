"""Structured logs: one JSON object a line on standard error; no pictures, no tokens, no names of files in it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class Line(logging.Formatter):
    """A record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The time, how grave it is, what happened, and its facts."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        document = {"time": time, "level": record.levelname.lower(), "event": record.getMessage(), **facts}
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def set_up(*, quiet: bool) -> None:
    """Send what the service and its server say to standard error; quietly, only what went wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line())
    usual = logging.WARNING if quiet else logging.INFO
    for name, level in (("vitrail.service", usual), ("uvicorn", logging.ERROR), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
