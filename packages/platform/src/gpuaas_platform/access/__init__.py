"""The way onto machines: SSH authorities, certificates, grants to people, streams and terminals."""
