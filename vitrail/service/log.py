"""Structured logs: one JSON object per line on standard error, without images, tokens or file names."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Format a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The time, level, event and facts of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        document = {"time": time, "level": record.levelname.lower(), "event": record.getMessage(), **facts}
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def configure_logging(*, quiet: bool) -> None:
    """Log the service and uvicorn to standard error; if quiet, warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    service_level = logging.WARNING if quiet else logging.INFO
    for name, level in (("vitrail.service", service_level), ("uvicorn", logging.ERROR), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
