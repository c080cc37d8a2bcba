"""What each role of a Firn cluster may do with the bucket, as AWS reads it."""
