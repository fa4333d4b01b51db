"""What schemathesis is told before it asks the service: what is a picture cannot be said in a schema."""

from __future__ import annotations

import schemathesis
from hypothesis import strategies as st

from tests.contract.serving import jpeg

schemathesis.openapi.format("binary", st.integers(0, 9).map(jpeg))
