"""Secret values in OpenBao, in versions, and the access credentials of projects."""
