"""PostgreSQL: one module per noun, explicit SQL."""
