"""The object store seam and its adapters."""
