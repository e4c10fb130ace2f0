"""What the platform does, one module per noun. No HTTP in here."""
