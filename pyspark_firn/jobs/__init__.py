"""Jobs over a bucket's history: archive it, prove it, replay it. Each is a function for ``spark-submit`` and a ``firn job``."""

from pyspark_firn.shadowing import require_firn

require_firn()
