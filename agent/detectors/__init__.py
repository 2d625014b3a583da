"""Pure detectors: records in, findings out."""
