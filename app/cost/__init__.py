"""What a workload costs a month: pure arithmetic from a workload, list prices and counted requests to dollars."""
