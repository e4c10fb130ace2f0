"""Route tables, one module per noun."""
