"""People and service accounts: who they are, how they log in, which SSH keys they have."""
