"""What a principal may do. Pure: rules come in, decisions come out."""
