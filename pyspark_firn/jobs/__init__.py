"""Jobs over a bucket's history: archive it, prove it, replay it. Each is a function for ``spark-submit`` and a ``firn job``."""
