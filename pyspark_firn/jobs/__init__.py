"""Jobs over a bucket's history. Each is a function for ``spark-submit`` and a command ``firn job``.

- ``archive``, ``archive_plan``, ``parquet_files``, ``iceberg``, ``targets``: a topic's history as Parquet files or an Iceberg table
- ``values``, ``avro_indexes``: JSON and Avro values as columns
- ``inspection``, ``audit_report``: verify and audit
- ``compact``: merges segments, or compacts them
- ``replay``: produces a range of history again
- ``running``, ``preloaded``: where the parts of a job run; ``sources``: topics that a job can read
"""

from pyspark_firn.shadowing import require_firn

require_firn()
