"""Words of the wire that need no models: for programs that start often and do little."""

API_PREFIX = "/v1"
CORRELATION_HEADER = "X-Correlation-Id"
