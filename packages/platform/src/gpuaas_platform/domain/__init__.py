"""Rules that need no database: policy, derived states, the address plan."""
