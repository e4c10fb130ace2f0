"""The ground under every room: transactions and their outbox, refusals, pages, OpenBao, keys of the platform's own."""
