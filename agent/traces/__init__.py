"""One training step as people look at it: a timeline for Perfetto, and a trace for any OTLP backend."""
