"""Settings for schemathesis: a schema cannot express what a valid image is."""

from __future__ import annotations

import schemathesis
from hypothesis import strategies as st

from tests.contract.serving import jpeg

schemathesis.openapi.format("binary", st.integers(0, 9).map(jpeg))
