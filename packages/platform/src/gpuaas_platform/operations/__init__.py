"""Operations on instances and members: requested, claimed, reported, ended; alone or in bulk."""
