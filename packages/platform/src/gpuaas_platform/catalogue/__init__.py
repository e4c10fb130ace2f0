"""Apps, their versions, and which tenants are entitled to them."""
