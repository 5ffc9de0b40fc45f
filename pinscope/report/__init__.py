"""Runs as files for people and for other programs: HTML, Markdown, CSV, Parquet, JSON, Perfetto traces."""
