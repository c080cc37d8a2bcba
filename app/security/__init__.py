"""Who somebody is, and what a principal may do. Pure: rules and tokens come in, decisions come out."""
