"""The reconcile runtime: finds work, holds leases, runs an app's handlers and reports what they did."""
