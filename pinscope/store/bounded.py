"""Columns whose text is loaded only if it is no larger than it may be: what an older version stored may be any size."""

from __future__ import annotations

from sqlalchemy import Text, case, cast, func

from pinscope.records.limits import ROW_BYTES, RUN_BYTES
from pinscope.store.tables import ObservationTable, RunTable

RECORD_LENGTH = func.length(cast(RunTable.document, Text))
"""Of a run's own record, in characters."""
RECORD = case((RECORD_LENGTH <= RUN_BYTES, RunTable.document), else_=None)
"""A run's own record; ``None`` if it is too large."""
ROW_LENGTH = func.length(cast(ObservationTable.row, Text))
"""Of an observation, in characters."""
ROW = case((ROW_LENGTH <= ROW_BYTES, ObservationTable.row), else_=None)
"""An observation; ``None`` if it is too large."""
