"""The conformance kit: runs an app on a real platform, with faults between, and says which rules it keeps."""
