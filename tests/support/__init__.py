"""Shared by tests: the virtual loop, simulated disks, real servers on loopback.

- Time and work without a machine: ``virtual_loop``, ``turns``, ``counted_loop``, ``cpu``, ``crowded``
- Disks and stores: ``simfs``, ``power``, ``small_disk``, ``buckets``, ``s3_server``, ``fillings``
- Brokers and clusters: ``broker``, ``cluster``, ``several``, ``cluster_process``, ``cluster_served``, ``cluster_faults``
- Security: ``secured``, ``secured_cluster``, ``guarded_cluster``, ``rights``, ``cluster_rights``, ``audited``, ``callers``
- Metrics and alerts: ``scraping``, ``promql``, ``alerts``, ``metric_rows``
"""
